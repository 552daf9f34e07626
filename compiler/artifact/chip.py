"""A chip: its figures, each with where it is from, and the rules of its launch geometry."""

from typing import Annotated, Literal

from pydantic import Field

from mlxr.compiler.artifact.geometry_rule import GeometryRule, Origin
from mlxr.compiler.spec.record import Record


class Figure(Record):
    """A number of a chip."""

    value: Annotated[float, Field(gt=0)]
    """In the unit that its name gives."""
    origin: Origin
    """Where it is from."""
    note: str = ""
    """What else there is to know."""


class ChipFigures(Record):
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
