"""The form of chips/*.yaml: chips of one family."""

from typing import Annotated

from pydantic import AfterValidator, Field

from mlxr.compiler.artifact.chip import ChipFigures, HalfType
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.schedule.geometry_rules import known_sizes
from mlxr.compiler.spec.record import Record

CheckedRule = Annotated[GeometryRule, AfterValidator(known_sizes)]
"""A rule whose sizes the geometry has."""


class ChipEntry(Record):
    """A chip in its file."""

    title: str
    """Its name for people."""
    device: str = ""
    """What the device's own name begins with, in lower case; empty: several chips have that name."""
    figures: ChipFigures | None = None
    """How fast it is; null where nothing is assumed."""
    half: HalfType | None = None
    """The 16-bit type that it computes best with; null: no preference."""
    geometry: tuple[CheckedRule, ...] = ()
    """Rules after those of its file."""


class ChipFile(Record):
    """Chips of one family."""

    about: str
    """What they share, and where their figures are from."""
    geometry: tuple[CheckedRule, ...] = ()
    """Rules for all of them."""
    chips: Annotated[dict[str, ChipEntry], Field(min_length=1)]
    """By the name that commands take."""
