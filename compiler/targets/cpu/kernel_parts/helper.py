"""A part of the C program that several kernels share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class CpuHelper(ABC):
    """C text that a program has once, before its kernels. Its template reads this object as `h`."""

    template: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """The C name that it defines, or the start of its C names. Different helpers have different names."""
