"""A chip: its figures, each with its origin, and the rules of its launch geometry."""

from typing import Annotated, Literal

from pydantic import Field

from mlxr.compiler.artifact.geometry_rule import GeometryRule, Origin
from mlxr.compiler.spec.record import Record


class Figure(Record):
    """One figure of a chip."""

    value: Annotated[float, Field(gt=0)]
    """The number, in the unit of the figure's name."""
    origin: Origin
    """Where the number is from."""
    note: str = ""
    """Anything else worth knowing."""


class ChipFigures(Record):
    """The figures that bound a launch's time. 1 GB is 10^9 bytes."""

    bandwidth_gb_per_s: Figure
    """Bandwidth of its memory."""
    f32_tflops: Figure
    """Rate of f32 arithmetic in a kernel's own loops; a multiply and an add are two operations."""
    matmul_tflops: Figure
    """Rate of MLX's matmul on 16-bit numbers."""
    launch_us: Figure
    """Time from the end of a kernel to the start of the next one, which waits for it."""
    cache_mib: Figure
    """Size of the last cache before memory; 1 MiB is 2^20 bytes."""


class HalfType(Record):
    """A chip's preference between f16 and bf16, where a model's weights leave it open."""

    type: Literal["f16", "bf16"]
    """The type."""
    because: Annotated[str, Field(min_length=1)]
    """Why, for people."""
    origin: Origin
    """Where the choice is from."""


class Chip(Record):
    """A chip as an artifact records it."""

    name: str
    """Its name in commands."""
    title: str
    """Its name for people."""
    device: str = ""
    """The beginning of the name that the device reports, in lower case."""
    figures: ChipFigures | None = None
    """Its speed; null if nothing is assumed."""
    half: HalfType | None = None
    """The 16-bit type that it prefers; null: no preference."""
    geometry: tuple[GeometryRule, ...] = ()
    """Its geometry rules, in order; later rules win."""
