"""Random matrices in every weight format: the bytes of each plane as in files, and their numbers."""

from typing import Any

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import Plan, WeightFormat, WeightPlan, part_places
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES, as_bits
from mlxr_tests.block_fields import dequantised, exponent_bytes, half_bytes, half_sizes, number_bits
from mlxr_tests.repetition import varied
from mlxr_tests.specs import random_weight

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


def has_minima(format: WeightFormat) -> bool:
    """Whether elements are a code times a scale plus a shift, so that sums cancel."""
    return format.affine is not None or len(half_bytes(format)) > 1


def random_planes(rng: np.random.Generator, format: WeightFormat, shape: tuple[int, int], scale: float) -> list[Bytes]:
    """A matrix with elements of about this size: [rows, bytes of a row] for each plane of the format."""
    rows, columns = shape
    if not format.is_quantised:
        array = mx.array(rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)).astype(
            MLX_DTYPES[str(format)]
        )
        bits = as_bits(array) if format == "bf16" else np.array(array)
        return [np.ascontiguousarray(bits).view(np.uint8).reshape(rows, -1)]
    blocks = columns // format.block_elements
    planes = []
    for plane in format.planes:
        data = rng.integers(0, 256, (rows, blocks, plane.block_bytes), np.uint8)
        for byte in (0,) if plane.dtype == "u8" else exponent_bytes(format):
            data[:, :, byte] = rng.integers(-2, 2, (rows, blocks)) + 127 + int(np.round(np.log2(scale / 3)))
        for byte, size in zip(half_bytes(format), half_sizes(format), strict=True):
            numbers = (scale / size * rng.uniform(0.5, 1.5, (rows, blocks))).astype(np.float16)
            data[:, :, byte : byte + 2] = numbers[..., None].view(np.uint8)
        if plane.dtype is not None and plane.dtype != "u8":
            step = scale / 2 ** (number_bits(format) - 1) * rng.uniform(0.8, 1.2, (rows, blocks))
            values = mx.array(step if plane.name == "scales" else -scale * rng.uniform(0.8, 1.2, step.shape))
            values = values.astype(MLX_DTYPES[str(plane.dtype)])
            numbers = as_bits(values) if plane.dtype == "bf16" else np.array(values)
            data = np.ascontiguousarray(numbers).view(np.uint8)
        planes.append(np.ascontiguousarray(data.reshape(rows, -1)))
    return planes


def numbers_of(format: WeightFormat, planes: list[Bytes], columns: int) -> Floats:
    """The matrix as numbers, [rows, columns] f32, computed by the packages that define the formats."""
    if format.is_quantised:
        return dequantised(format, planes).reshape(len(planes[0]), columns)
    return np.array(_as_f32(planes[0], str(format)))


def _as_f32(plane: Bytes, dtype: str) -> mx.array:
    if dtype == "bf16":
        return mx.array((plane.view(np.uint16).astype(np.uint32) << 16).view(np.float32))
    return mx.array(plane.view({"f16": np.float16, "f32": np.float32}[dtype]).astype(np.float32))


def joined(parts: list[tuple[WeightFormat, list[Bytes]]], columns: int, size_bytes: int) -> Bytes:
    """The parts of a weight as one buffer for kernels; gaps are 0xEE."""
    buffer = np.full(size_bytes, 0xEE, np.uint8)
    places = part_places([(format, len(planes[0])) for format, planes in parts], columns)
    for (_, planes), offsets in zip(parts, places, strict=True):
        for plane, offset in zip(planes, offsets, strict=True):
            buffer[offset : offset + plane.size] = plane.reshape(-1)
    return buffer


def random_buffer(rng: np.random.Generator, plan: WeightPlan, scale: float | None = None) -> tuple[mx.array, mx.array]:
    """A weight as kernels read it, and its numbers."""
    layout = plan.layout
    if layout.dtype != "u8":
        array = random_weight(rng, plan)
        return array, array
    columns = plan.shape[1]
    scale = scale or (1.0 if plan.name == "embedding" else columns**-0.5)
    parts = [(part.format, random_planes(rng, part.format, (part.shape[0], columns), scale)) for part in plan.parts]
    numbers = mx.array(np.concatenate([numbers_of(format, planes, columns) for format, planes in parts]))
    buffer = mx.array(joined(parts, columns, layout.size_bytes))
    mx.eval(numbers, buffer)
    return buffer, numbers


def random_buffers(plan: Plan, seed: int = 0) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """Weights of a plan by name, as kernels read them, and their numbers."""
    rng = np.random.default_rng(varied(seed))
    pairs = {weight.name: random_buffer(rng, weight) for weight in plan.weights}
    return {name: buffer for name, (buffer, _) in pairs.items()}, {
        name: numbers for name, (_, numbers) in pairs.items()
    }
