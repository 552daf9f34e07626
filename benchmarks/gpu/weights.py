"""Random weights, made where they are used: one set of arrays that MLXR, mlx-lm and the reference all take.

A tensor has its Hugging Face name and consists of its planes: numbers; or bits, scales and biases; or GGUF blocks.
Nothing here looks at an array of the GPU through NumPy, which would move it to managed memory for good.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from peers.models import Shape

from gpu.work import FORMATS
from mlxr.compiler.artifact import TensorSource, WeightPlan, part_places
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.select import array_host

Planes = tuple[mx.array, ...]
_STD = 0.02
_GROUP, _BITS = 64, 4
_BLOCK_ELEMENTS, _BLOCK_BYTES = 256, 144
_SLAB_ROWS = 4096


class RandomWeights(Mapping[str, Planes]):
    """A model's tensors by their Hugging Face names. Vectors are bf16 in every format."""

    def __init__(self, shape: Shape, format_name: str) -> None:
        """Makes them on the default device.

        Args:
            shape: the model's dimensions.
            format_name: of FORMATS.
        """
        self.shape, self.format = shape, format_name
        self._planes: dict[str, Planes] = {}
        self._made: dict[WeightPlan, mx.array] = {}
        for name, _, dims, _ in shape.matrices():
            mx.random.seed(zlib.crc32(name.encode()))
            self._planes[name] = _vector(dims[0]) if len(dims) == 1 else _MATRICES[format_name](*dims)
            mx.eval(self._planes[name])
        mx.clear_cache()

    def __getitem__(self, name: str) -> Planes:
        """The planes of a tensor."""
        return self._planes[name]

    def __iter__(self) -> Iterator[str]:
        """Names."""
        return iter(self._planes)

    def __len__(self) -> int:
        """Tensors."""
        return len(self._planes)

    def mlx_lm_arrays(self) -> list[tuple[str, mx.array]]:
        """The arrays for mlx-lm's model; none for GGUF blocks, which it cannot read."""
        assert self.format != "q4_k", "mlx-lm has no K-quants"
        pairs = []
        for name, planes in self.items():
            stem = name.removesuffix(".weight")
            pairs += [(f"{stem}.{kind}", plane) for kind, plane in zip(("weight", "scales", "biases"), planes)]  # noqa: B905
        return pairs

    def buffers(self, plan: Sequence[WeightPlan]) -> dict[str, mx.array]:
        """The weights as kernels read them: see `WeightPlan.layout`. Artifacts share equal buffers."""
        for weight in plan:
            if weight not in self._made:
                self._made[weight] = self._buffer(weight)
        buffers = {weight.name: self._made[weight] for weight in plan}
        mx.eval(buffers)
        mx.clear_cache()
        return buffers

    def _buffer(self, weight: WeightPlan) -> mx.array:
        dtype = str(weight.layout.dtype)
        parts = [self[_name_of(part)] for part in weight.parts]
        if dtype != "u8":
            arrays = [planes[0].astype({"f32": mx.float32, "bf16": mx.bfloat16}[dtype]) for planes in parts]
            return arrays[0] if len(arrays) == 1 else mx.concatenate(arrays)
        pieces, end = [], 0
        places = part_places([(part.format, part.shape[0]) for part in weight.parts], weight.shape[1])
        for planes, offsets in zip(parts, places, strict=True):
            for plane, offset in zip(planes, offsets, strict=True):
                pieces += [mx.zeros((offset - end,), mx.uint8)] if offset > end else []
                pieces.append(plane.view(mx.uint8).reshape(-1))
                end = offset + plane.nbytes
        size = weight.size_bytes
        pieces += [mx.zeros((size - end,), mx.uint8)] if size > end else []
        return mx.concatenate(pieces)

    def numbers(self, plan: Sequence[WeightPlan]) -> dict[str, mx.array]:
        """The weights as numbers of the graph's types, as `reference` takes them."""
        arrays = {}
        for weight in plan:
            numbers = mx.concatenate([self._decode(part) for part in weight.parts])
            arrays[weight.name] = numbers.astype(MLX_DTYPES[str(weight.dtype)])
            mx.eval(arrays[weight.name])
        return arrays

    def as_read_by(self, host: str, plan: Sequence[WeightPlan]) -> dict[str, mx.array]:
        """The weights as a host takes them."""
        return self.buffers(plan) if array_host(host).reads_buffers else self.numbers(plan)

    def _decode(self, part: TensorSource) -> mx.array:
        """The numbers of a tensor, f32, decoded by other code than the code that is checked."""
        planes = self[_name_of(part)]
        if len(part.shape) == 1 or self.format == "bf16":
            return planes[0].astype(mx.float32)
        if self.format == "q4_k":
            blocks = np.array(planes[0] | 0)  # a copy: what the CPU looks at leaves the GPU's memory
            slabs = [blocks[i : i + _SLAB_ROWS] for i in range(0, len(blocks), _SLAB_ROWS)]
            with ThreadPoolExecutor() as pool:
                decoded = list(pool.map(lambda slab: dequantize(slab, GGMLQuantizationType.Q4_K), slabs))
            return mx.array(np.concatenate(decoded)) * 1
        bits, scales, biases = (plane.astype(mx.float32) if plane.dtype == mx.bfloat16 else plane for plane in planes)
        return mx.dequantize(bits, scales, biases, group_size=_GROUP, bits=_BITS)


def _name_of(part: TensorSource) -> str:
    recipe = part.safetensors[0]
    assert recipe.stack == 1 and recipe.rows is None and not recipe.add, f"{part.name} is a tensor as it is"
    return recipe.tensor


def _vector(length: int) -> Planes:
    """A norm's weight."""
    return ((1 + 0.1 * mx.random.normal((length,))).astype(mx.bfloat16),)


def _bf16(rows: int, columns: int) -> Planes:
    slabs = []
    for start in range(0, rows, _SLAB_ROWS):
        slab = _STD * mx.random.normal((min(_SLAB_ROWS, rows - start), columns))
        slabs.append(slab.astype(mx.bfloat16))
        mx.eval(slabs[-1])
    return (mx.concatenate(slabs),)


def _affine4(rows: int, columns: int) -> Planes:
    return tuple(mx.quantize(_bf16(rows, columns)[0], group_size=_GROUP, bits=_BITS))


def _q4_k(rows: int, columns: int) -> Planes:
    """Blocks of random bits: f16 d and dmin, then 6-bit scales and minima, then 4-bit numbers.

    dmin is 7.5 d, so that numbers scatter about 0, and d is such that they scatter as far as those of other formats:
    scale x number - minimum x 7.5 has a standard deviation of about 260.
    """
    shape = (rows, columns // _BLOCK_ELEMENTS)
    d = _STD / 260 * mx.random.uniform(0.8, 1.2, (*shape, 1))
    halves = mx.concatenate([d, 7.5 * d], axis=-1).astype(mx.float16).view(mx.uint8)
    bits = mx.random.randint(0, 256, (*shape, _BLOCK_BYTES - 4), mx.uint8)
    return (mx.concatenate([halves, bits], axis=-1).reshape(rows, -1),)


_MATRICES = {"bf16": _bf16, "affine4": _affine4, "q4_k": _q4_k}
assert _MATRICES.keys() == FORMATS.keys(), "a way to make each format"


def pattern(size: int, seed: int) -> mx.array:
    """So many bf16 numbers, normal with deviation 1: a repeated run of random numbers, which is quick to make."""
    period = min(size, (1 << 22) - 3)
    run = mx.random.normal((period,), key=mx.random.key(seed)).astype(mx.bfloat16)
    return mx.broadcast_to(run[None], (-(-size // period), period)).reshape(-1)[:size]
