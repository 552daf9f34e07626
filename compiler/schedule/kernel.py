"""A kernel before it has a text: what templates are given, one frozen dataclass for each template.

A context is a kernel's identity: equal contexts are one kernel. Fields are what the op and the geometry fix; properties
are what follows from them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType

Port = tuple[str, DType]
"""A buffer parameter: its name, and the type of its elements."""


@dataclass(frozen=True)
class Kernel(ABC):
    """A kernel to be rendered. `label` is the readable part of its name."""

    label: str

    @property
    @abstractmethod
    def template(self) -> str:
        """The file that its text is rendered from. Most kinds of kernels have one, and name it as a class variable."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[Port, ...]:
        """Input buffers in order."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[Port, ...]:
        """Output buffers in order."""
