"""Sums over the ranks of a stage by a kernel of our own, in one launch, through memory that their cards see.

MLX's sum through NCCL takes 107 to 300 us for the 8 KB of a decode step's row. The kernel's text is
templates/hosts/peer_sum_on_cuda.cuh.
"""

from collections.abc import Sequence
from importlib.resources import files

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import BLOCKS, mailbox_macros
from mlxr.runtime.hosts.cuda.build import build_cubin
from mlxr.runtime.hosts.cuda.device import architecture
from mlxr.runtime.hosts.cuda.device_array import on_device

_THREADS = 512
_TYPES = {mx.float32: ("f32", "float"), mx.float16: ("f16", "__half"), mx.bfloat16: ("bf16", "__nv_bfloat16")}


def kernel_text(name: str, dtype: mx.Dtype, rank: int, ranks: int) -> str:
    """The kernel of a rank, in CUDA."""
    macros = {"NAME": name, "TYPE": _TYPES[dtype][1], **mailbox_macros(rank, ranks, _THREADS)}
    defined = "".join(f"#define {macro} {value}\n" for macro, value in macros.items())
    return defined + files("mlxr.templates").joinpath("hosts/peer_sum_on_cuda.cuh").read_text("utf-8")


class PeerSums:
    """Sums over ranks whose memories are known.

    Attributes:
        memories: [ranks] u64 as pairs of u32: the addresses.
    """

    def __init__(self, rank: int, memories: Sequence[int]) -> None:
        """Prepares; compiles nothing yet.

        Args:
            rank: this process's, of those that take part.
            memories: of each rank, the address of its zeroed `mailbox_bytes` as this process's GPU sees it.
        """
        self._rank, self._ranks = rank, len(memories)
        self.memories = on_device(mx.array(np.array(memories, np.uint64).view(np.uint32)))
        self._images: dict[mx.Dtype, bytes] = {}

    def prepare(self, dtype: mx.Dtype) -> None:
        """Compiles the kernel of a type.

        Raises:
            HostError: no NVRTC, or a cache that cannot be written.
        """
        if dtype not in self._images:
            name = self._kernel(dtype)
            text = kernel_text(name, dtype, self._rank, self._ranks)
            self._images[dtype] = build_cubin(name, text, architecture())

    def name(self, dtype: mx.Dtype) -> str:
        """The name under which launches are counted."""
        return f"peer_sum_{_TYPES[dtype][0]}"

    def _kernel(self, dtype: mx.Dtype) -> str:
        return f"{self.name(dtype)}_{self._rank}_of_{self._ranks}"

    def sum(self, x: mx.array, after: mx.array | None = None) -> mx.array:
        """The sum of all x over the ranks, like x: added in the order of the ranks, in f32, and rounded to x's type.

        All ranks call it in the same order.

        Args:
            x: f32, f16 or bf16, not empty.
            after: an array that is computed before; None: nothing.
        """
        self.prepare(x.dtype)
        words = -(-x.nbytes // 8)
        (total,) = mx.fast.precompiled_cuda_kernel(
            name=self._kernel(x.dtype),
            compiled_source=self._images[x.dtype],
            inputs=[x, self.memories, self.memories if after is None else after],
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
            scalars=[x.size],
            grid=(_THREADS * min(BLOCKS, -(-words // _THREADS)), 1, 1),
            threadgroup=(_THREADS, 1, 1),
            ensure_row_contiguous=True,
        )
        return total
