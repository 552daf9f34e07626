"""A kernel before it has a text: the context of its template, one frozen dataclass for each template.

A context is a kernel's identity: equal contexts are one kernel. The op and the geometry set its fields; its properties
follow from the fields.
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
        """The template file of its text. Most kinds of kernels have a single one and name it in a class variable."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[Port, ...]:
        """Input buffers in order."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[Port, ...]:
        """Output buffers in order."""


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is at least `value`."""
    return -(-value // multiple) * multiple
