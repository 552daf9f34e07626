"""`mlxr import` writes the spec that a file is run by, and `mlxr models` lists what can be imported."""

import json
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr.compiler.spec.family import known_families
from mlxr.compiler.spec.load import load_spec
from mlxr.loading.resolve import resolve_artifact
from mlxr_tests import encoder_models, multimodal_models
from mlxr_tests.config_effects import FAMILIES
from mlxr_tests.family_models import CONFIGS
from mlxr_tests.storyteller import BF16, GOLDEN, Q8_0

TINY = GOLDEN / "tiny-Q4_K_M.gguf"


def test_the_spec_is_the_one_that_the_file_is_run_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.yaml"
    assert main(["import", str(TINY), "-o", str(path)]) == 0
    told = capsys.readouterr()
    assert (told.out, "family llama, weights q4_k" in told.err) == ("", True)
    assert load_spec(path) == resolve_artifact(str(TINY))[0].spec
    assert main(["import", str(TINY)]) == 0
    assert capsys.readouterr().out == path.read_text()


def test_options_and_folders(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    options = ["--context", "64", "--compute", "exact", "--kv", "q8", "--sequences", "3"]
    assert main(["import", str(BF16.parent), "-o", str(path), *options]) == 0
    spec = load_spec(path)
    assert (spec.model.context, spec.compute, spec.cache.dtype, spec.weights.default) == (64, "exact", "q8", "bf16")
    assert spec.cache.max_sequences == 3


def test_what_is_no_models_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("storyteller", str(tmp_path), str(tmp_path / "x.gguf")):
        assert main(["import", name]) == 1
        assert "error: " in capsys.readouterr().err  # test_messages.py has the words
    for option in ("--context", "--sequences"):
        assert main(["import", str(TINY), option, "0"]) == 1
        assert f"{option} is 0; expected at least 1" in capsys.readouterr().err
    assert main(["import", str(TINY), "-o", str(tmp_path / "none" / "spec.yaml")]) == 1
    assert "the folder" in capsys.readouterr().err


def test_weights_of_other_formats_are_refused_with_the_command_that_compiles_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "spec.yaml"
    assert main(["import", str(TINY), "-o", str(path)]) == 0
    other = GOLDEN / "tiny-Q8_0.gguf"
    for weights in (other, Q8_0):
        arguments = ["run", str(path), "--weights", str(weights), "--prompt", "A", "--host", "reference"]
        assert main(arguments) == 1
        message = capsys.readouterr().err
        if weights == other:
            assert "is q8_0, the artifact reads q4_k" in message
            assert f"`mlxr import {other} -o spec.yaml`" in message
        else:
            assert "weights of another model" in message


def test_models_lists_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [family["name"] for family in found["families"]] == list(known_families())
    names = {name for family in found["families"] for name in family["config"]}
    # Each is held against mlx-lm or transformers, but for chatglm (against transformers' glm) and baichuan (against
    # llama.cpp); hunyuan is another name of hunyuan_v1_moe, and xlm-roberta of roberta.
    wholes = multimodal_models.CONFIGS.values()
    of_wholes = {config["text_config"].get("model_type", config["model_type"]) for config in wholes}
    held = {case.partition(",")[0] for case in (*CONFIGS, *multimodal_models.CONFIGS, *FAMILIES)}
    encoders = {config["model_type"] for config in encoder_models.CONFIGS.values()}
    assert held | of_wholes | encoders == names - {"chatglm", "baichuan", "hunyuan", "xlm-roberta"}
    assert all(len(set(family["config"])) == len(family["config"]) for family in found["families"])
    assert "storyteller" in [spec["name"] for spec in found["specs"]]
    assert all(family["about"] for family in found["families"])
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert "gpt_oss" in text and "gpt-oss" in text and "bundled spec" in text
