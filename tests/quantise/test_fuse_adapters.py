"""`mlxr fuse` writes what the model with the adapter computes: folders exactly, GGUF files in their own formats."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import mlxr
from mlxr.cli import main
from mlxr.runtime.weights.gguf_header import read_gguf_header
from mlxr_tests.adapter_files import llama_shapes, made_adapter
from mlxr_tests.few import few
from mlxr_tests.storyteller import TINY
from mlxr_tests.tiny_llama import tiny_adapter, tiny_llama

PROMPT = [1, 5, 9, 2, 7, 30, 44]
HEADS = 4, 2
TINY_SHAPES = llama_shapes(layers=2, hidden=256, heads=4, kv_heads=2, head_dim=64, width=512)


def logits(model: Path, **options: Any) -> Any:
    changes = mlxr.Changes(compute="exact", activation_dtype="f32", cache_dtype="f32")
    with mlxr.load(str(model), host="reference", changes=changes, **options) as loaded:
        return loaded.logits(PROMPT)


def fuse(*arguments: object) -> int:
    return main(["fuse", *map(str, arguments)])


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, made = tiny_llama(tmp_path / "base"), tiny_adapter(3)
    own, other = made.gguf(tmp_path / "a.gguf"), tiny_adapter(4).peft(tmp_path / "b")
    assert fuse(base, "--adapter", own, "--adapter", f"{other}:0.5", "-o", tmp_path / "fused") == 0
    assert "14 tensors are changed" in capsys.readouterr().out
    both = {name: delta + 0.5 * tiny_adapter(4).deltas[name] for name, delta in made.deltas.items()}
    merged = tiny_llama(tmp_path / "merged", both)
    expected, found = (load_file(folder / "model.safetensors") for folder in (merged, tmp_path / "fused"))
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, atol=1e-5, err_msg=name)
    assert (tmp_path / "fused/config.json").read_text() == (base / "config.json").read_text()
    np.testing.assert_allclose(logits(tmp_path / "fused"), logits(merged), atol=1e-3)


@pytest.mark.parametrize("kind", few(["gguf", "peft"], ["peft"]))
def test_a_gguf_file_in_its_own_formats(kind: str, tmp_path: Path) -> None:
    made, out = made_adapter(TINY_SHAPES, HEADS, 5), tmp_path / "fused.gguf"
    adapter = made.gguf(tmp_path / "a.gguf") if kind == "gguf" else made.peft(tmp_path / "a")
    assert fuse(TINY, "--adapter", adapter, "-o", out) == 0
    before, after = read_gguf_header(TINY), read_gguf_header(out)
    assert {n: (t.shape, t.type) for n, t in before.tensors.items()} == {
        n: (t.shape, t.type) for n, t in after.tensors.items()
    }
    plain, adapted, fused = logits(TINY), logits(TINY, adapter=adapter), logits(out)
    assert np.abs(plain - adapted).max() > 1.0
    assert np.abs(fused - adapted).max() < 0.05 * np.abs(plain - adapted).max(), "but for what 8 bits lose"


def test_what_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = tiny_adapter(1).peft(tmp_path / "adapter")
    assert fuse(TINY, "--adapter", adapter, "-o", tmp_path / "out.gguf") == 1
    assert "the adapter is for another model" in capsys.readouterr().err
    assert fuse(TINY, "--adapter", adapter, "-o", tmp_path / "folder") == 1
    assert "becomes a FILE.gguf" in capsys.readouterr().err
    assert fuse(tiny_llama(tmp_path / "base"), "--adapter", f"{adapter}:nan", "-o", tmp_path / "folder") == 1
    assert "an adapter's scale is nan" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "base")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter"]
