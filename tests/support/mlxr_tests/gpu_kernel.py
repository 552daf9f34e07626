"""Kernels on a GPU, NVIDIA's or Apple's, with sim's interface, so that tests of sim can run there instead.

Each launch copies its buffers to the GPU, and copies the writable buffers back. Outputs start as NaN.
"""

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact.kernel_entry import KernelEntry, KernelPort, body_of, header_of
from mlxr.compiler.formats.dtypes import DType
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES, as_bits
from mlxr.runtime.hosts.cuda import host as cuda
from mlxr.runtime.hosts.cuda.build import build_cubin, cuda_source
from mlxr.runtime.hosts.cuda.device import architecture
from mlxr.runtime.hosts.metal import host as metal
from mlxr.runtime.hosts.mlx.launcher import MlxKernel
from mlxr.runtime.hosts.sim.kernel import SimBuffer
from mlxr.runtime.hosts.sim.signature import parse_signature

_DTYPES = {dtype.metal: dtype for dtype in DType}
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}

POISON = None if os.environ.get("MLXR_TEST_POISON") == "0" else float("nan")
"""The initial value of outputs; None if a tool looks for reads of uninitialised memory."""


LEAST_METAL_ELEMENTS = 8
"""MLX gives a Metal kernel a smaller input in the constant address space, which no kernel of ours expects."""


class GpuKernel(ABC):
    """One kernel, ready to launch, with the interface of `SimKernel`."""

    least_elements = 0

    def __init__(self, text: str, name: str, threads: int) -> None:
        signature = parse_signature(text, name)
        self.params = signature.params
        self._dtypes = [_DTYPES[param.type] for param in self.params]
        ports = [KernelPort(name=p.name, dtype=dtype) for p, dtype in zip(self.params, self._dtypes, strict=True)]
        count = sum(not param.writable for param in self.params)
        entry = KernelEntry(
            name=name,
            label=name,
            file="",
            inputs=tuple(ports[:count]),
            outputs=tuple(ports[count:]),
            threads=threads,
            threadgroup_bytes=0,
        )
        self._num_inputs = count
        self._launcher = self.launcher(entry, header_of(text), body_of(text))

    @abstractmethod
    def launcher(self, entry: KernelEntry, header: str, body: str) -> MlxKernel:
        """The kernel as MLX launches it."""

    def launch(
        self, buffers: Sequence[SimBuffer], threadgroups: tuple[int, int, int], threads: tuple[int, int, int], **_: Any
    ) -> None:
        """Runs a grid to its end."""
        if 0 not in threadgroups:
            with mx.stream(mx.gpu):
                self._launch(buffers, threadgroups, threads)

    def _launch(
        self, buffers: Sequence[SimBuffer], threadgroups: tuple[int, int, int], threads: tuple[int, int, int]
    ) -> None:
        memory = [_memory(buffer, dtype) for buffer, dtype in zip(buffers, self._dtypes, strict=True)]
        count = self._num_inputs
        inputs = [
            mx.array(np.pad(bits, (0, max(0, self.least_elements - bits.size)))).view(MLX_DTYPES[dtype])
            for bits, dtype in zip(memory[:count], self._dtypes[:count], strict=True)
        ]
        mx.eval(inputs)
        results = self._launcher(
            inputs=inputs,
            output_shapes=[bits.shape for bits in memory[count:]],
            output_dtypes=[MLX_DTYPES[dtype] for dtype in self._dtypes[count:]],
            grid=tuple(g * t for g, t in zip(threadgroups, threads, strict=True)),
            threadgroup=threads,
            init_value=POISON,
        )
        mx.eval(results)
        mx.synchronize()
        for buffer, bits, array in zip(buffers, memory, [*inputs, *results], strict=True):
            if buffer.writable:
                bits[...] = as_bits(array).reshape(-1)[: bits.size]


class CudaKernel(GpuKernel):
    """A kernel on an NVIDIA GPU."""

    def launcher(self, entry: KernelEntry, header: str, body: str) -> MlxKernel:
        """Through the CUDA prelude."""
        return cuda.launcher(entry.name, build_cubin(entry.name, cuda_source(entry, header, body), architecture()))


class MetalKernel(GpuKernel):
    """A kernel on an Apple GPU."""

    least_elements = LEAST_METAL_ELEMENTS

    def launcher(self, entry: KernelEntry, header: str, body: str) -> MlxKernel:
        """As host metal does."""
        return metal.launcher(entry, header, body)


def _memory(buffer: SimBuffer, dtype: DType) -> "np.ndarray[Any, Any]":
    """A buffer's memory as unsigned integers of its elements' size."""
    raw = (ctypes.c_uint8 * buffer.size_bytes).from_address(buffer.address)
    return np.frombuffer(raw, dtype=np.uint8).view(_BITS[dtype.size_bytes])
