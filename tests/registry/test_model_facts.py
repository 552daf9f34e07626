"""What is told of models without loading them, against their files."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import MlxrError
from mlxr.compiler.spec.parallel import Parallel
from mlxr.inspect.report import parameters
from mlxr.loading.add_model import add_model
from mlxr.loading.model_facts import model_facts
from mlxr.loading.options import LoadOptions
from mlxr.loading.resolve import resolve_artifact
from mlxr_tests.storyteller import BF16, Q4_K_M, TINY


@pytest.mark.parametrize(
    ("file", "quantization"), [(TINY, "Q8_0"), (Q4_K_M, "Q4_K_M"), (BF16, "BF16")], ids=lambda value: str(value)[-12:]
)
def test_size_and_kind_are_those_of_the_files(file: Path, quantization: str) -> None:
    model = file.parent if file == BF16 else file
    facts = model_facts(model)
    assert (facts.size_bytes, facts.quantization, facts.family) == (file.stat().st_size, quantization, "llama")
    assert facts.format == ("safetensors" if file == BF16 else "gguf")
    assert facts.num_parameters == parameters(resolve_artifact(str(model))[0])


def test_an_artifact_has_the_facts_of_the_weights_that_are_given(tmp_path: Path) -> None:
    spec = resolve_artifact(str(TINY))[0].spec
    artifact = compile_spec(spec.model_copy(update={"parallel": Parallel(tensor=2)}), targets=("cpu",)).artifact
    artifact.write(tmp_path / "split")
    assert model_facts(tmp_path / "split", weights=str(TINY)) == model_facts(TINY)
    with pytest.raises(MlxrError, match="comes without weights"):
        model_facts(tmp_path / "split")


def test_a_registered_file_has_its_own_hash_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    copy = tmp_path / "copy.gguf"
    shutil.copy(TINY, copy)
    add_model(copy, "mine", options=LoadOptions(host="reference"))
    assert model_facts("mine").digest == hashlib.sha256(TINY.read_bytes()).hexdigest()
    sampled = model_facts(copy)
    assert sampled == model_facts(TINY), "a copy elsewhere is the same model"
    with copy.open("r+b") as stream:
        stream.seek(-100, os.SEEK_END)
        stream.write(bytes(100))
    changed = model_facts("mine")
    assert (
        changed.digest == model_facts(copy).digest not in {sampled.digest, hashlib.sha256(copy.read_bytes()).digest()}
    )
    add_model(Q4_K_M, "mine", replaces=True, options=LoadOptions(template="{{ registered }}", host="reference"))
    assert model_facts("mine").size_bytes == Q4_K_M.stat().st_size
    assert (model_facts("mine").templates.text, model_facts(copy).templates) == ("{{ registered }}", None)
    (tmp_path / "chat_template.jinja").write_text("{{ beside }}")
    assert model_facts(copy).templates.text == "{{ beside }}"
    copy.unlink()
    with pytest.raises(MlxrError):
        model_facts(copy)
