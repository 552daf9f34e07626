"""Random weights in the formats of a spec: native bytes for host cpu, and the same numbers for the reference."""

from typing import Any

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import Plan, TensorSource
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES, as_bits
from mlxr_tests.format_planes import numbers_of, random_planes
from mlxr_tests.specs import random_weight

Native = dict[str, "np.ndarray[Any, Any]"]


def random_native(plan: Plan, seed: int = 0) -> tuple[Native, dict[str, mx.array]]:
    """Weights of a plan: the bytes of each part by its canonical name, and the numbers of each weight by its name."""
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
    """A float weight's parts in their formats; `whole` is rounded to what these formats can store."""
    native, row = {}, 0
    for part in parts:
        rows = whole[row : row + part.shape[0]].astype(MLX_DTYPES[str(part.format)])
        mx.eval(rows)
        whole[row : row + part.shape[0]] = rows.astype(whole.dtype)
        bits = as_bits(rows) if part.format == "bf16" else np.array(rows)
        native[part.name] = np.ascontiguousarray(bits)
        row += part.shape[0]
    mx.eval(whole)
    return native


def _matrix(
    rng: np.random.Generator, part: TensorSource, scale: float
) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """Bytes and numbers of a matrix; its elements have about this standard deviation."""
    if not part.format.is_quantised:
        array = mx.array(rng.standard_normal(part.shape, dtype=np.float32) * np.float32(scale))
        array = array.astype(MLX_DTYPES[str(part.format)])
        mx.eval(array)
        bits = as_bits(array) if part.format == "bf16" else np.array(array)
        return np.ascontiguousarray(bits), np.array(array.astype(mx.float32))
    planes = random_planes(rng, part.format, (part.shape[0], part.shape[1]), scale)
    return np.concatenate(planes, axis=1), numbers_of(part.format, planes, part.shape[1])
