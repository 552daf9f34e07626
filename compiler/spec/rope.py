"""Rotary position embedding in a spec: its base, its share of a head, and how it is stretched for long contexts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mlxr.compiler.spec.fields import Contradictions, Count, Flag
from mlxr.compiler.spec.record import Record

Factor = Annotated[float, Field(ge=1, le=2**20, strict=True)]
AttentionFactor = Annotated[float, Field(gt=0, le=2**20, strict=True)]


class NoScaling(Record):
    """RoPE frequencies as they are."""

    kind: Literal["none"] = "none"
    """`none`: frequencies are not scaled."""


class LinearScaling(Record):
    """Positions divided by `factor` (position interpolation)."""

    kind: Literal["linear"]
    """`linear`: positions are divided by `factor`."""
    factor: Factor
    """How many times longer than the trained context."""


class BaseScaling(Record):
    """A greater base (NTK-aware scaling): the slowest pair turns `factor` times slower, the fastest as before."""

    kind: Literal["base"]
    """`base`: theta is multiplied by factor^(d / (d - 2)), where d is the rotary dim."""
    factor: Factor
    """How many times slower the slowest pair turns."""


class Llama3Scaling(Record):
    """Llama 3.1's piecewise scaling: low frequencies divided by `factor`, high ones kept, a ramp between."""

    kind: Literal["llama3"]
    """`llama3`: low frequencies are divided by `factor`, high ones kept, with a ramp between."""
    factor: Factor
    """Divisor of the low frequencies."""
    low_freq_factor: Annotated[float, Field(gt=0, le=2**20, strict=True)] = 1.0
    """Wavelengths over original_context / low_freq_factor are fully scaled."""
    high_freq_factor: Annotated[float, Field(gt=0, le=2**20, strict=True)] = 4.0
    """Wavelengths under original_context / high_freq_factor are kept; at least low_freq_factor."""
    original_context: Count = 8192
    """Context length the model was first trained with."""

    @model_validator(mode="after")
    def _check(self) -> "Llama3Scaling":
        wrong = Contradictions()
        if self.high_freq_factor < self.low_freq_factor:
            wrong.add(
                "high_freq_factor",
                f"high_freq_factor {self.high_freq_factor:g} must be at least low_freq_factor {self.low_freq_factor:g}",
                "Llama 3 models use low_freq_factor 1 and high_freq_factor 4",
            )
        wrong.refuse()
        return self


class YarnScaling(Record):
    """YaRN: pairs that turn often in the trained context are kept, those that turn seldom are divided by `factor`."""

    kind: Literal["yarn"]
    """`yarn`: high frequencies are kept, low ones divided by `factor`, with a ramp between; heads are scaled."""
    factor: Factor
    """How many times longer than the trained context."""
    original_context: Count
    """Context length the model was first trained with."""
    beta_fast: Annotated[float, Field(gt=0, le=2**20, strict=True)] = 32.0
    """Pairs with more turns in the original context are kept; at least beta_slow."""
    beta_slow: Annotated[float, Field(gt=0, le=2**20, strict=True)] = 1.0
    """Pairs with fewer turns in the original context are fully scaled."""
    attention_factor: AttentionFactor | None = None
    """Cosines and sines are multiplied by it; null for 0.1 ln(factor) + 1."""
    truncate: Flag = True
    """Whether the ramp begins and ends at whole pairs."""

    @model_validator(mode="after")
    def _check(self) -> "YarnScaling":
        wrong = Contradictions()
        if self.beta_fast < self.beta_slow:
            wrong.add(
                "beta_fast",
                f"beta_fast {self.beta_fast:g} must be at least beta_slow, {self.beta_slow:g}",
                "most models use beta_fast 32 and beta_slow 1",
            )
        wrong.refuse()
        return self


Factors = Annotated[
    tuple[Annotated[float, Field(gt=0, le=2**20, strict=True)], ...], Field(min_length=1, max_length=128, strict=False)
]


class LongRopeScaling(Record):
    """LongRoPE: each pair's frequency divided by a factor of its own."""

    kind: Literal["longrope"]
    """`longrope`: each frequency is divided by a factor of its own."""
    short_factors: Factors
    """Divisors where the model's context is at most original_context; one of each rotated pair."""
    long_factors: Factors
    """Divisors where the model's context is longer; one of each rotated pair."""
    original_context: Annotated[int, Field(ge=2, le=2**31 - 1, strict=True)]
    """Context length the model was first trained with."""
    attention_factor: AttentionFactor | None = None
    """Cosines and sines are multiplied by it; null for sqrt(1 + ln(context / original_context) / ln(original_context)),
    or 1 where the context is not longer."""


class Rope(Record):
    """Rotary position embedding."""

    theta: Annotated[float, Field(gt=1, le=1e15, strict=True)] = 10000.0
    """Base of the frequencies: theta^(-2i / rotary_dim)."""
    fraction: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    """Share of each head that is rotated; the rest passes through."""
    turned: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    """Share of the rotated pairs that turn, the first ones; the others have frequency 0."""
    layout: Literal["half", "interleaved"] = "half"
    """`half` rotates (x[i], x[i + rotary_dim/2]), `interleaved` rotates (x[2i], x[2i+1])."""
    scaling: Annotated[
        NoScaling | LinearScaling | BaseScaling | Llama3Scaling | YarnScaling | LongRopeScaling,
        Field(discriminator="kind"),
    ] = NoScaling()
    """How frequencies are stretched for contexts longer than the trained one."""

    def rotary_dim(self, head_dim: int) -> int:
        """Rotated elements of a head."""
        return round(head_dim * self.fraction)

    def check(self, head_dim: int, at: str, wrong: Contradictions) -> None:
        """Notes contradictions with heads of `head_dim` elements.

        Args:
            head_dim: elements of one head.
            at: path of this section, for the findings.
            wrong: where findings go.
        """
        rotary, rotary_dim = head_dim * self.fraction, self.rotary_dim(head_dim)
        if abs(rotary - rotary_dim) > 1e-6 or rotary_dim % 2 or rotary_dim == 0:
            nearest = max(2, 2 * round(rotary / 2))
            wrong.add(
                f"{at}.fraction",
                f"the rotary dim is head_dim {head_dim} x fraction {self.fraction:g} = {rotary:g}; "
                "expected an even whole number, because elements are rotated in pairs",
                f"fraction {nearest / head_dim:.6g} gives {nearest}",
            )
        elif isinstance(self.scaling, BaseScaling) and rotary_dim < 4:
            wrong.add(f"{at}.scaling.kind", "one pair of a head is rotated, and kind base needs two", "use linear")
        elif isinstance(self.scaling, LongRopeScaling):
            for name in ("short_factors", "long_factors"):
                count = len(getattr(self.scaling, name))
                if count != rotary_dim // 2:
                    wrong.add(
                        f"{at}.scaling.{name}",
                        f"{count} factors, but {rotary_dim // 2} pairs of a head are rotated",
                        f"give {rotary_dim // 2} numbers, or correct head_dim or fraction",
                    )
