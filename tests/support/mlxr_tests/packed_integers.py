"""Matrices of packed integers as compressed-tensors writes them: forms, what it wrote, and how folders are made."""

from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Config = dict[str, Any]
RECORDED = Path(__file__).parents[2] / "data" / "packed_integers.safetensors"
ROWS, COLUMNS = 10, 256
"""Of the recorded matrices: zeros are packed along the rows, which fill no whole word."""


class Form(NamedTuple):
    """How integers are packed."""

    bits: int
    group: int | None
    """None: a row is one."""
    symmetric: bool
    scale: str
    """The type of the scales, as torch names it."""

    @property
    def weights(self) -> Config:
        """What config.json says of them."""
        said = {"num_bits": self.bits, "type": "int", "symmetric": self.symmetric, "dynamic": False}
        if self.group is None:
            return said | {"strategy": "channel"}
        return said | {"strategy": "group", "group_size": self.group}

    @property
    def settings(self) -> Config:
        """The `quantization_config` of a folder."""
        groups = {"group_0": {"targets": ["Linear"], "weights": self.weights, "input_activations": None}}
        return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}


FORMS = {
    "as Kimi K2": Form(4, 32, True, "bfloat16"),
    "zeros": Form(4, 128, False, "float16"),
    "rows of 8 bits": Form(8, None, True, "bfloat16"),
    "8 bits, zeros": Form(8, 64, False, "float32"),
    "rows, zeros": Form(4, None, False, "bfloat16"),
    "3 bits": Form(3, 32, True, "float32"),
}


def packed(name: str, matrix: npt.NDArray[np.floating[Any]], form: Form) -> tuple[dict[str, mx.array], Any]:
    """A matrix as a file has it, under a name that ends in `weight`, and the numbers that this means."""
    rng, (rows, columns) = np.random.default_rng(len(name)), matrix.shape
    half, group = 1 << (form.bits - 1), form.group or columns
    by_group = matrix.reshape(rows, -1, group)
    scales = mx.array(np.abs(by_group).max(-1) / half).astype(getattr(mx, form.scale))
    spread = np.array(scales.astype(mx.float32))
    zeros = np.full(spread.shape, half) if form.symmetric else rng.integers(half - 2, half + 3, spread.shape)
    integers = np.clip(np.rint(by_group / spread[:, :, None]) + zeros[:, :, None], 0, 2 * half - 1).astype(np.uint64)
    stored = {f"{name}_packed": _words(integers.reshape(rows, columns), form.bits), f"{name}_scale": scales}
    stored[f"{name}_shape"] = mx.array(np.array(matrix.shape, np.int64))
    if not form.symmetric:
        stored[f"{name}_zero_point"] = mx.contiguous(_words(zeros.T.astype(np.uint64), form.bits).T)
    numbers = (integers.astype(np.float32) - zeros[:, :, None].astype(np.float32)) * spread[:, :, None]
    return stored, mx.array(numbers.reshape(rows, columns).astype(np.float32))


def _words(integers: npt.NDArray[np.uint64], bits: int) -> mx.array:
    """A stream of bits along each row, in i32."""
    of_each = integers[:, :, None] >> np.arange(bits, dtype=np.uint64) & np.uint64(1)
    stream = of_each.reshape(len(integers), -1).astype(np.uint8)
    filled = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    return mx.array(np.packbits(filled, axis=1, bitorder="little").view("<i4"))
