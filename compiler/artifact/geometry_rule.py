"""A rule of launch geometry: which launches it matches, and the sizes that it sets."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mlxr.compiler.artifact.site import Site
from mlxr.compiler.spec.fields import INT32_MAX, Contradictions, Count, FormatName
from mlxr.compiler.spec.record import Record

Origin = Literal["measured", "published", "predicted"]
"""Where a number is from: we measured it, the vendor published it, or we predict it from known figures."""


class GeometryRule(Record):
    """Sets some sizes of the launches that meet all its conditions; a missing condition is always met."""

    sizes: Annotated[dict[str, Annotated[int, Field(ge=0, le=INT32_MAX, strict=True)]], Field(min_length=1)]
    """The values of some sizes of the geometry, by flat name (`matvec_outputs`)."""
    because: Annotated[str, Field(min_length=1)]
    """Why, for people; `inspect` shows it."""
    origin: Origin
    """Where the choice is from."""
    sites: tuple[str, ...] = ()
    """Only these launches, as `Site` writes them: `qkv 2560x2048 bf16`."""
    labels: tuple[str, ...] = ()
    """Only launches with one of these labels."""
    formats: tuple[FormatName | Literal["q8"], ...] = ()
    """Only launches whose weights (for attention: the cache) have no other format than these."""
    min_outputs: Count | None = None
    """Only weights of at least this many rows."""
    max_outputs: Count | None = None
    """Only weights of at most this many rows."""
    min_columns: Count | None = None
    """Only weights of at least this many columns."""
    max_columns: Count | None = None
    """Only weights of at most this many columns."""
    min_bits: Count | None = None
    """Only weights of at least this many bits per number, scales included."""
    max_bits: Count | None = None
    """Only weights of at most this many bits per number, scales included."""

    @model_validator(mode="after")
    def _check(self) -> "GeometryRule":
        wrong = Contradictions()
        for what in ("outputs", "columns", "bits"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low is not None and high is not None and low > high:
                wrong.add(f"min_{what}", f"{low} is more than max_{what}, {high}: no launch meets both")
        wrong.refuse()
        return self

    def holds(self, site: Site) -> bool:
        """Whether a site meets all conditions."""
        return (
            (not self.sites or str(site) in self.sites)
            and (not self.labels or site.label in self.labels)
            and (not self.formats or set(site.formats) <= set(self.formats))
            and _within(site.outputs, self.min_outputs, self.max_outputs)
            and _within(site.columns, self.min_columns, self.max_columns)
            and _within(site.bits, self.min_bits, self.max_bits)
        )


def _within(value: float, low: int | None, high: int | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)
