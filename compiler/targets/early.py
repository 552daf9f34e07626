"""A target whose sources are wanted before the artifact is complete. Light to import: loading a model needs it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Early(NamedTuple):
    """A target that is rendered before the others; `take` gets its sources by file, before those are rendered."""

    target: str
    take: Callable[[Mapping[str, str]], object]
