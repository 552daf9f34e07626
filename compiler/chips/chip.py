"""A chip: its figures, each with where it is from, and the rules of its launch geometry."""

from typing import Annotated

from pydantic import Field

from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.geometry_rules import GeometryRule, GeometryTable, Origin
from mlxr.compiler.schedule.target_types import HalfType
from mlxr.compiler.spec.fields import Frozen


class Figure(Frozen):
    """A number of a chip."""

    value: Annotated[float, Field(gt=0)]
    """In the unit that its name gives."""
    origin: Origin
    """Where it is from."""
    note: str = ""
    """What else there is to know."""


class ChipFigures(Frozen):
    """What bounds a launch. 1 GB is 10^9 bytes."""

    bandwidth_gb_per_s: Figure
    """Of its memory."""
    f32_tflops: Figure
    """Of f32 arithmetic in a kernel's own loops; a multiply and an add are two operations."""
    matmul_tflops: Figure
    """Of MLX's matmul on 16-bit numbers."""
    launch_us: Figure
    """From the end of a kernel to the start of the next one, which waits for it."""
    cache_mib: Figure
    """Of the last cache before memory; 1 MiB is 2^20 bytes."""


class ChipEntry(Frozen):
    """A chip in its file."""

    title: str
    """Its name for people."""
    device: str = ""
    """What the device's own name begins with, in lower case; empty: several chips have that name."""
    figures: ChipFigures | None = None
    """How fast it is; null where nothing is assumed."""
    half: HalfType | None = None
    """The 16-bit type that it computes best with; null: no preference."""
    geometry: tuple[GeometryRule, ...] = ()
    """Rules after those of its file."""


class ChipFile(Frozen):
    """Chips of one family."""

    about: str
    """What they share, and where their figures are from."""
    geometry: tuple[GeometryRule, ...] = ()
    """Rules for all of them."""
    chips: Annotated[dict[str, ChipEntry], Field(min_length=1)]
    """By the name that commands take."""


class Chip(Frozen):
    """A chip as an artifact records it."""

    name: str
    """What commands take."""
    title: str
    """Its name for people."""
    device: str = ""
    """What the device's own name begins with, in lower case."""
    figures: ChipFigures | None = None
    """How fast it is; null where nothing is assumed."""
    half: HalfType | None = None
    """The 16-bit type that it computes best with; null: no preference."""
    geometry: tuple[GeometryRule, ...] = ()
    """In order; later rules win."""

    def table(self, base: Geometry | None = None) -> GeometryTable:
        """The geometry of every launch: `base`, or else the default, changed by the rules."""
        return GeometryTable(base or Geometry(), self.geometry)
