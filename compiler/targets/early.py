"""A target whose sources are wanted before the artifact is complete. Light to import: who loads a model names it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Early(NamedTuple):
    """A target that is rendered before the others, and who gets its sources, by file, while those are rendered."""

    target: str
    take: Callable[[Mapping[str, str]], object]
