"""Random weights in the formats of a spec: native bytes for the cpu host, and the same numbers for the reference."""

from typing import Any

import gguf
import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import Plan, TensorSource, WeightFormat
from mlxr.runtime.mlx_arrays import MLX_DTYPES, as_bits
from mlxr_tests.specs import random_weight

Native = dict[str, "np.ndarray[Any, Any]"]

# f16 fields of a K-quant's block, (byte, share of the scale that weights should have).
_K_SCALES = {
    WeightFormat.Q4_K: ((0, 1 / 250), (2, 7.5 / 250)),
    WeightFormat.Q5_K: ((0, 1 / 500), (2, 15.5 / 500)),
    WeightFormat.Q6_K: ((208, 1 / 1370),),
}


def random_native(plan: Plan, seed: int = 0) -> tuple[Native, dict[str, mx.array]]:
    """Weights of a plan: each part's bytes by its canonical name, and each weight's numbers by its own."""
    rng = np.random.default_rng(seed)
    native: Native = {}
    arrays: dict[str, mx.array] = {}
    for weight in plan.weights:
        dtype = MLX_DTYPES[str(weight.dtype)]
        if not any(part.format.is_quantised for part in weight.parts):
            arrays[weight.name] = random_weight(rng, weight)
            native |= _float_parts(weight.parts, arrays[weight.name])
            continue
        numbers = []
        for part in weight.parts:
            scale = 1.0 if weight.name == "embedding" else part.shape[1] ** -0.5
            native[part.name], values = _matrix(rng, part, scale)
            numbers.append(values)
        arrays[weight.name] = mx.array(np.concatenate(numbers)).astype(dtype)
        mx.eval(arrays[weight.name])
    return native, arrays


def _float_parts(parts: tuple[TensorSource, ...], whole: mx.array) -> Native:
    """A float weight's parts in their formats, all of which hold the whole's numbers."""
    found, row = {}, 0
    for part in parts:
        rows = whole[row : row + part.shape[0]].astype(MLX_DTYPES[str(part.format)])
        mx.eval(rows)
        whole[row : row + part.shape[0]] = rows.astype(whole.dtype)
        bits = as_bits(rows) if part.format == "bf16" else np.array(rows)
        found[part.name] = np.ascontiguousarray(bits)
        row += part.shape[0]
    mx.eval(whole)
    return found


def _matrix(
    rng: np.random.Generator, part: TensorSource, scale: float
) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """Bytes and numbers of a matrix whose elements have about this standard deviation."""
    if not part.format.is_quantised:
        array = mx.array(rng.standard_normal(part.shape, dtype=np.float32) * np.float32(scale))
        array = array.astype(MLX_DTYPES[str(part.format)])
        mx.eval(array)
        bits = as_bits(array) if part.format == "bf16" else np.array(array)
        return np.ascontiguousarray(bits), np.array(array.astype(mx.float32))
    kind = gguf.GGMLQuantizationType[part.format.gguf]
    if part.format in _K_SCALES:  # gguf has no quantiser for them, but any bits are numbers
        blocks = part.shape[1] // part.format.block_elements
        data = rng.integers(0, 256, (part.shape[0], blocks, part.format.block_bytes), np.uint8)
        for byte, share in _K_SCALES[part.format]:
            halves = (scale * share * rng.uniform(0.5, 1.5, data.shape[:2])).astype(np.float16)
            data[:, :, byte : byte + 2] = halves[..., None].view(np.uint8)
        rows = data.reshape(part.shape[0], -1)
    else:
        numbers = rng.standard_normal(part.shape, dtype=np.float32) * np.float32(scale)
        rows = gguf.quants.quantize(numbers, kind)
    return rows, gguf.quants.dequantize(rows, kind)
