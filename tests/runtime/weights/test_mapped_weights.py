"""Two tensors are one matrix written twice if all bytes agree, scales and biases too."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlxr.runtime.weights.mapped_weights import same_numbers
from mlxr.runtime.weights.open_weights import open_weights

NUMBERS = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"b.weight": NUMBERS + 1}, False),
        ({"b.weight": NUMBERS.reshape(6, 4)}, False),
        ({"b.weight": NUMBERS.astype(np.float64)}, False),
        ({"a.scales": NUMBERS}, False),
        ({"a.scales": NUMBERS, "b.scales": NUMBERS}, True),
        ({"a.scales": NUMBERS, "b.scales": NUMBERS + 1}, False),
    ],
)
def test_every_byte_counts(changes: dict[str, np.ndarray], same: bool, tmp_path: Path) -> None:
    save_file({"a.weight": NUMBERS, "b.weight": NUMBERS.copy()} | changes, tmp_path / "model.safetensors")
    assert same_numbers(open_weights(tmp_path), "a.weight", "b.weight") is same


def test_tensors_whose_names_do_not_end_in_weight_are_compared(tmp_path: Path) -> None:
    save_file({"a": NUMBERS, "b": NUMBERS + 1, "c": NUMBERS.copy()}, tmp_path / "model.safetensors")
    file = open_weights(tmp_path)
    assert same_numbers(file, "a", "c") and not same_numbers(file, "a", "b")
