"""A target whose sources are wanted before the artifact is complete. Light to import: loading a model needs it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mlxr.compiler.artifact import Program


class Early(NamedTuple):
    """A target that is rendered before the others; `take` gets its program, and sources by file, before those are."""

    target: str
    take: "Callable[[Program, Mapping[str, str]], object]"
