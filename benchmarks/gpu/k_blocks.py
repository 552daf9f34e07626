"""Random Q4_K and Q6_K blocks whose numbers MLX's own format can hold too, exactly.

A group of MLX's format is 64 weights with a scale and a bias in bf16. Here, 64 weights of a block share a scale (and in
Q4_K a minimum) of 6 bits, times a power of two: bf16 holds that exactly. So a GGUF file and a folder for mlx-lm can
have the same numbers, and the engines' outputs can be compared.

A run of blocks is repeated as often as a tensor needs: speed does not depend on the numbers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

Array = npt.NDArray[np.generic]
BLOCK = 256
"""Weights of a block."""
_RUN = (1 << 14) - 3
_GROUP = 64
_LEAST_SCALE, _MOST_SCALE = 24, 48


@dataclass(frozen=True)
class KBlocks:
    """Blocks of one type, and the same numbers in MLX's format.

    Attributes:
        type: the type's number in gguf-py.
        bits: bits of a weight in MLX's format.
        blocks: [blocks, bytes] u8.
        codes: [blocks, words] u32.
        scales: [blocks, 4] bf16, as 16 bits.
        biases: likewise.
    """

    type: GGMLQuantizationType
    bits: int
    blocks: Array
    codes: Array
    scales: Array
    biases: Array

    def repeated(self, count: int) -> "KBlocks":
        """The run, repeated until it is `count` blocks longer: a tensor may begin anywhere in the first run."""
        planes = (self.blocks, self.codes, self.scales, self.biases)
        return KBlocks(self.type, self.bits, *(np.resize(p, (len(self.blocks) + count, p.shape[1])) for p in planes))

    def part(self, seed: int, rows: int, columns: int) -> tuple[Array, Array, Array, Array]:
        """A matrix: its blocks, codes, scales and biases, each [rows, ...]; views that share memory."""
        start, count = seed % _RUN, rows * columns // BLOCK
        planes = (self.blocks, self.codes, self.scales, self.biases)
        blocks, codes, scales, biases = (plane[start : start + count].reshape(rows, -1) for plane in planes)
        return blocks, codes, scales, biases


def q4_k(seed: int = 1, count: int = _RUN) -> KBlocks:
    """Weights of d x scale x code - dmin x minimum; the minima are such that numbers scatter about 0."""
    random = np.random.default_rng(seed)
    d, dmin = 2.0**-13, 2.0**-10
    of_group = random.integers(_LEAST_SCALE, _MOST_SCALE, (count, 4))
    scales = of_group.repeat(2, axis=1).astype(np.uint8)
    minima = np.rint(7.5 * scales * d / dmin).astype(np.uint8)
    # Source: `get_scale_min_k4` of llama.cpp, inverted.
    low = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    middle = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    high = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    halves = np.broadcast_to(np.array([d, dmin], np.float16).view(np.uint8), (count, 4))
    codes = random.integers(0, 256, (count, BLOCK // 2), np.uint8)
    blocks = np.concatenate([halves, low, middle, high, codes], axis=1)
    return _with_mlx(GGMLQuantizationType.Q4_K, 4, blocks, of_group * d, -minima[:, ::2].astype(np.float64) * dmin)


def q6_k(seed: int = 2, count: int = _RUN) -> KBlocks:
    """Weights of d x scale x (code - 32)."""
    random = np.random.default_rng(seed)
    d = 2.0**-15
    of_group = random.integers(_LEAST_SCALE, _MOST_SCALE, (count, 4))
    codes = random.integers(0, 256, (count, BLOCK * 6 // 8), np.uint8)
    half = np.broadcast_to(np.array([d], np.float16).view(np.uint8), (count, 2))
    blocks = np.concatenate([codes, of_group.repeat(4, axis=1).astype(np.uint8), half], axis=1)
    return _with_mlx(GGMLQuantizationType.Q6_K, 6, blocks, of_group * d, -32 * of_group * d)


def _with_mlx(kind: GGMLQuantizationType, bits: int, blocks: Array, scales: Array, biases: Array) -> KBlocks:
    """The same numbers as codes: gguf-py says what the blocks' numbers are."""
    numbers = dequantize(blocks, kind).reshape(len(blocks), -1, _GROUP)
    codes = np.rint((numbers - biases[..., None]) / scales[..., None]).astype(np.uint8).reshape(-1, BLOCK)
    each = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    words = np.packbits(each.reshape(len(blocks), -1), axis=-1, bitorder="little").view(np.uint32)
    return KBlocks(kind, bits, blocks, words, _bf16(scales), _bf16(biases))


def _bf16(numbers: Array) -> Array:
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
