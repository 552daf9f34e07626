"""The digest of a weight file: other for other weights, the same wherever the files lie."""

import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.weights_digest import weights_digest
from mlxr_tests.storyteller import TINY

TENSORS = {"a.weight": (40, 64), "b.weight": (3, 5), "c": (), "none": (0, 4)}


def save(path: Path, **changes: mx.array) -> str:
    """Saves random tensors, the same each time but for the changes, and returns the digest."""
    rng = np.random.default_rng(0)
    tensors = {name: mx.array(rng.standard_normal(shape, dtype=np.float32)) for name, shape in TENSORS.items()}
    mx.save_safetensors(str(path), tensors | {name.replace("_", "."): array for name, array in changes.items()})
    return weights_digest(open_weights(path))


@pytest.mark.parametrize("change", ["first", "middle", "last", "small", "type", "shape", "name"])
def test_other_weights_have_another_digest(change: str, tmp_path: Path) -> None:
    before = save(tmp_path / "model.safetensors")
    large = np.random.default_rng(0).standard_normal((40, 64), dtype=np.float32)
    place = {"first": (0, 0), "middle": (20, 0), "last": (39, 63)}.get(change)
    if place:
        large[place] += 1
    changes: dict[str, mx.array] = {
        "small": {"b_weight": mx.zeros((3, 5))},
        "type": {"b_weight": mx.zeros((3, 5), mx.int32)},
        "shape": {"a_weight": mx.array(large.reshape(64, 40))},
        "name": {"d": mx.zeros(0)},
    }.get(change, {"a_weight": mx.array(large)})
    assert save(tmp_path / "model.safetensors", **changes) != before
    assert len(before) == 32


def test_files_may_move(tmp_path: Path) -> None:
    shutil.copy(TINY, tmp_path / "copy.gguf")
    assert weights_digest(open_weights(tmp_path / "copy.gguf")) == weights_digest(open_weights(TINY))
    file = open_weights(tmp_path / "copy.gguf")
    (tmp_path / "copy.gguf").unlink()
    with pytest.raises(WeightsError, match=r"copy\.gguf: cannot be read: No such file"):
        weights_digest(file)
