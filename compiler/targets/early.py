"""A target whose sources are wanted before the artifact is complete. Light to import: loading a model needs it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from mlxr.compiler.artifact import KernelEntry, Program

TakeKernel: TypeAlias = "Callable[[KernelEntry, str], object]"


def take_nothing(entry: "KernelEntry", text: str) -> None:
    """Who can do nothing with a single kernel."""


class Early(NamedTuple):
    """A target that is rendered before the others, for whoever can already do something with it.

    Attributes:
        target: its name.
        take: gets its program, and sources by file, before the others are rendered.
        take_kernel: gets each of its kernels as soon as that has its text, before there is a program. Targets without
            a text for each kernel call nothing.
    """

    target: str
    take: "Callable[[Program, Mapping[str, str]], object]"
    take_kernel: TakeKernel = take_nothing
