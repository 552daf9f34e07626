"""The base of Metal kernels."""

from abc import abstractmethod
from dataclasses import dataclass

from mlxr.compiler.schedule.kernel import Kernel

SIMD_WIDTH = 32
THREADGROUP_BYTES = 32768


@dataclass(frozen=True)
class MetalKernel(Kernel):
    """A kernel in Metal."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a threadgroup."""

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of its threadgroup arrays."""
        return 0
