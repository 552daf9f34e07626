"""The schema of chips/*.yaml: the chips of one family."""

from typing import Annotated

from pydantic import AfterValidator, Field

from mlxr.compiler.artifact.chip import ChipFigures, HalfType
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.schedule.geometry_rules import known_sizes
from mlxr.compiler.spec.record import Record

CheckedRule = Annotated[GeometryRule, AfterValidator(known_sizes)]
"""A rule that names only sizes of the geometry."""


class ChipEntry(Record):
    """One chip in a file."""

    title: str
    """Its name for people."""
    device: str = ""
    """The beginning of the name that the device reports, in lower case; empty: several chips report the same name."""
    figures: ChipFigures | None = None
    """Its speed; null if nothing is assumed."""
    half: HalfType | None = None
    """The 16-bit type that it prefers; null: no preference."""
    geometry: tuple[CheckedRule, ...] = ()
    """Its own rules, which come after the file's."""


class ChipFile(Record):
    """Chips of one family."""

    about: str
    """What the chips share, and where their figures are from."""
    geometry: tuple[CheckedRule, ...] = ()
    """Rules for all of the file's chips."""
    chips: Annotated[dict[str, ChipEntry], Field(min_length=1)]
    """The chips by their names in commands."""
