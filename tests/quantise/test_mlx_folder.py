"""Folders in MLX's formats: the tensors that mlx-lm's own quantisation gives, of every kind that is accepted."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model
from safetensors.numpy import load_file

import mlxr
from mlxr.cli import main
from mlxr.compiler.errors import MlxrError
from mlxr.quantise import safetensors_output
from mlxr.quantise.mlx_folder import KINDS, folder_content, mlx_format, write_mlx_folder
from mlxr_tests.family_models import CONFIGS, build_model, config_of, save_folder
from mlxr_tests.few import few
from mlxr_tests.storyteller import ANSWER, BF16, PROMPT, Q8_0, TOKENIZER

CASES = [kind for kind in sorted(KINDS) if kind in CONFIGS]


def read(folder: Path) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        arrays |= mx.load(str(path))
    return arrays


def check_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype and mx.array_equal(ours[name], array, equal_nan=True), name


@pytest.mark.parametrize("kind", few(CASES, ["gemma3_text", "llama"]))
def test_kinds(kind: str, tmp_path: Path) -> None:
    config = config_of(kind)
    model = build_model(config)
    folder = save_folder(model, config, tmp_path / "in")
    write_mlx_folder(folder_content(folder), tmp_path / "out", mlx_format("affine4", 32))  # type: ignore[arg-type]
    model, described = quantize_model(model, dict(config), 32, 4)
    check_same(read(tmp_path / "out"), dict(tree_flatten(model.parameters())))
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written["quantization"] == described["quantization"] == written["quantization_config"]


@pytest.mark.parametrize("name", ["affine2", "affine8", "mxfp4", "f16"])
def test_formats(name: str, tmp_path: Path) -> None:
    """Of bf16 weights, which config.json calls float16: all floats become that; and a tensor in several slabs."""
    folder = tmp_path / "in"
    folder.mkdir()
    numbers = mx.random.normal((96, 128), key=mx.random.key(1)).astype(mx.bfloat16)
    weights = {"model.a.weight": numbers, "model.a.bias": numbers[0], "model.narrow.weight": numbers[:, :48]}
    mx.save_safetensors(str(folder / "model.safetensors"), weights | {"lm_head.weight": numbers})
    config = {"model_type": "llama", "torch_dtype": "float16", "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    format = mlx_format(name)
    assert format is not None
    write_mlx_folder(folder_content(folder), tmp_path / "out", format)
    expected = {key: array.astype(mx.float16) for key, array in weights.items()}
    if format.mode:
        planes = mx.quantize(expected.pop("model.a.weight"), format.group, format.bits, format.mode)
        expected |= dict(zip(("model.a.weight", "model.a.scales", "model.a.biases"), planes, strict=False))
    check_same(read(tmp_path / "out"), expected)


@pytest.mark.long
def test_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("qwen2")
    folder = save_folder(build_model(config), config, tmp_path / "in")
    monkeypatch.setattr(safetensors_output, "SHARD_BYTES", 30_000)
    write_mlx_folder(folder_content(folder), tmp_path / "out", mlx_format("f32"))  # type: ignore[arg-type]
    assert len(list((tmp_path / "out").glob("model-0*-of-0*.safetensors"))) > 5
    check_same(read(tmp_path / "out"), read(folder))
    logits = [mlxr.load(path, host="reference").logits([1, 2, 3]) for path in (folder, tmp_path / "out")]
    assert np.array_equal(*logits)


def storyteller_folder(folder: Path) -> Path:
    folder.mkdir()
    for path in (BF16, BF16.with_name("config.json"), TOKENIZER):
        (folder / path.name).symlink_to(path)
    return folder


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tokenizer comes along: the model answers."""
    folder, out = storyteller_folder(tmp_path / "in"), tmp_path / "out"
    assert main(["quantize", str(folder), "-o", str(out), "--format", "affine8", "--group-size", "32"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: 20,0")
    answer = mlxr.load(out, host="reference").generate(PROMPT, max_tokens=4, sampling=mlxr.Sampling(temperature=0))
    assert answer.text == ANSWER
    assert main(["quantize", str(folder), "-o", str(out), "--format", "affine8"]) == 1
    assert "it exists; name a new folder, or an empty one" in capsys.readouterr().err
    assert main(["quantize", str(out), "-o", str(tmp_path / "again"), "--format", "affine4"]) == 1
    assert "it is quantised already; quantise the original" in capsys.readouterr().err
    assert main(["quantize", str(folder), "-o", str(tmp_path / "again"), "--format", "q4_k"]) == 1
    assert "would be a folder of mlx-lm's, which has affine2" in capsys.readouterr().err
    assert main(["quantize", str(Q8_0), "-o", str(tmp_path / "again"), "--format", "affine4"]) == 1
    assert "is q8_0 already" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_kinds_that_mlx_lm_changes(tmp_path: Path) -> None:
    config = config_of("qwen3_moe")
    folder = save_folder(build_model(config), config, tmp_path / "in")
    with pytest.raises(MlxrError, match="model_type 'qwen3_moe': mlx-lm reads other tensors"):
        write_mlx_folder(folder_content(folder), tmp_path / "out", mlx_format("affine4"))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_large_models_have_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_output, "SHARD_BYTES", 100)
    arrays = {name: np.arange(size, dtype=np.float32) for name, size in (("a", 20), ("b", 5), ("c", 1), ("d", 40))}
    tensors = [
        safetensors_output.PlainTensor(name, array.shape, "F32", lambda array=array: [array.view(np.uint8)])
        for name, array in arrays.items()
    ]
    safetensors_output.write_safetensors(tmp_path, tensors)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    places = {
        name: f"model-{number:05}-of-00003.safetensors" for name, number in zip("abcd", (1, 1, 2, 3), strict=True)
    }
    assert index == {"metadata": {"total_size": 264}, "weight_map": places}
    for name, place in places.items():
        np.testing.assert_array_equal(load_file(tmp_path / place)[name], arrays[name])
