"""Parts of the C program that are there only because a kernel uses them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class CpuHelper(ABC):
    """C text that appears once in a program, before its kernels. Its template reads this object as `h`."""

    @property
    @abstractmethod
    def template(self) -> str:
        """Its file under templates/cpu."""


@dataclass(frozen=True)
class CpuHeader(CpuHelper):
    """A C header that only some kernels use. `unit.py` lists the headers that every program has."""

    file: str

    @property
    def template(self) -> str:
        """The file itself."""
        return self.file


LINKS = CpuHeader("links.h")
"""How ranks exchange rows; in the program of one of several."""
