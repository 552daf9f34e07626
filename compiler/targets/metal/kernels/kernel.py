"""Kernel contexts: everything a template is given, one frozen dataclass per template.

A context is a kernel's identity: equal contexts are one kernel. Fields are what the op and the geometry fix; properties
are what follows from them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mlxr.compiler.formats.dtypes import DType

Port = tuple[str, DType]
SIMD_WIDTH = 32
THREADGROUP_BYTES = 32768


@dataclass(frozen=True)
class Kernel(ABC):
    """A kernel to be rendered. `label` is the readable part of its name."""

    label: str
    template: ClassVar[str]

    @property
    @abstractmethod
    def inputs(self) -> tuple[Port, ...]:
        """Input buffers in order."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[Port, ...]:
        """Output buffers in order."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a threadgroup."""

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of its threadgroup arrays."""
        return 0


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple
