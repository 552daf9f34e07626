"""GGUF models that become folders: there and back, tensors, config.json and tokens are what they were."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.errors import SpecError
from mlxr.quantise.gguf_as_folder import gguf_as_folder
from mlxr.quantise.mlx_folder import mlx_format, write_mlx_folder
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr_tests.converted_models import PROMPT, convert, make_folder
from mlxr_tests.few import few
from mlxr_tests.storyteller import ANSWER, BF16, Q8_0
from mlxr_tests.storyteller import PROMPT as TEXT
from mlxr_tests.vocabularies import random_texts

CASES = [
    "llama",
    "mistral",
    "qwen2, output",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text, seven layers",
]
EXACT = mlxr.Changes(activation_dtype="f32", cache_dtype="f32", compute="exact")


@pytest.mark.parametrize("case", few(CASES, ["gemma3_text, seven layers"]))
def test_there_and_back(case: str, tmp_path: Path) -> None:
    folder, back = make_folder(case, tmp_path / "in"), tmp_path / "back"
    path = convert(folder, tmp_path / "out.gguf")
    format = mlx_format("f32")
    assert format is not None
    write_mlx_folder(gguf_as_folder(path), back, format)
    ours, theirs = (mx.load(str(each / "model.safetensors")) for each in (back, folder))
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=2e-7, err_msg=name)  # norms have 1 added
    logits = [mlxr.load(each, host="reference", changes=EXACT).logits(PROMPT) for each in (folder, back)]
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=2e-6 * float(np.abs(logits[0]).max()))
    tokenizers = [load_tokenizer(each) for each in (folder, back)]
    for text in random_texts(20):
        assert tokenizers[0].encode(text, parse_special=True) == tokenizers[1].encode(text, parse_special=True)


@pytest.mark.long
def test_a_quantised_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["quantize", str(Q8_0), "-o", str(out), "--format", "affine8", "--group-size", "32"]
    assert main([*arguments, "--allow-requantize"]) == 0
    config = json.loads((out / "config.json").read_text())
    assert config["quantization"] == {"bits": 8, "group_size": 32, "mode": "affine"}
    known = json.loads(BF16.with_name("config.json").read_text())
    assert all(config[key] == value for key, value in known.items() if key not in ("architectures", "eos_token_id"))
    answer = mlxr.load(out, host="reference").generate(TEXT, max_tokens=4, sampling=mlxr.Sampling(temperature=0))
    assert answer.text == ANSWER


def test_families_that_are_refused(tmp_path: Path) -> None:
    path = convert(make_folder("glm4", tmp_path / "in"), tmp_path / "out.gguf")
    with pytest.raises(SpecError, match="a GGUF model of the family glm4 cannot be written as a folder here"):
        gguf_as_folder(path)
