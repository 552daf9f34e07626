"""RoPE frequencies, computed once at compile time in double precision.

Source: RoFormer (Su et al. 2021); linear scaling from kaiokendev and Chen et al. 2023; that of the base from
bloc97 (NTK-aware, 2023); the piecewise scaling from Meta's Llama 3.1 release; YaRN from Peng et al. 2023; LongRoPE from
Ding et al. 2024. We choose between LongRoPE's two lists once, from the context that the model is compiled for.
"""

import math

from mlxr.compiler.spec.model import BaseScaling, LinearScaling, Llama3Scaling, LongRopeScaling, Rope, YarnScaling


def rope_frequencies(rope: Rope, rotary_dim: int, context: int = 1) -> tuple[float, ...]:
    """Radians per position of each rotated pair: rotary_dim / 2 numbers, the fastest pair first, those that rest last.

    Args:
        rope: base and scaling.
        rotary_dim: rotated elements of a head.
        context: longest sequence of the model; LongRoPE has two lists of factors, for short and long contexts.
    """
    all_turn = _frequencies(rope, rotary_dim, context)
    turning = int(len(all_turn) * rope.turned)
    return (*all_turn[:turning], *[0.0] * (len(all_turn) - turning))


def _frequencies(rope: Rope, rotary_dim: int, context: int) -> tuple[float, ...]:
    theta, scaling = rope.theta, rope.scaling
    if isinstance(scaling, BaseScaling):
        theta *= scaling.factor ** (rotary_dim / (rotary_dim - 2))
    plain = tuple(theta ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2))
    if isinstance(scaling, LinearScaling):
        return tuple(f / scaling.factor for f in plain)
    if isinstance(scaling, Llama3Scaling):
        return tuple(_llama3(f, scaling) for f in plain)
    if isinstance(scaling, YarnScaling):
        return _yarn(plain, scaling, rope.theta)
    if isinstance(scaling, LongRopeScaling):
        factors = scaling.short_factors if context <= scaling.original_context else scaling.long_factors
        return tuple(f / factor for f, factor in zip(plain, factors, strict=True))
    return plain


def rope_scale(rope: Rope, context: int) -> float:
    """Factor of the cosines and sines."""
    scaling = rope.scaling
    if not isinstance(scaling, YarnScaling | LongRopeScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if isinstance(scaling, YarnScaling):
        return 0.1 * math.log(scaling.factor) + 1
    stretch = context / scaling.original_context
    return math.sqrt(1 + math.log(stretch) / math.log(scaling.original_context)) if stretch > 1 else 1.0


def _llama3(frequency: float, scaling: Llama3Scaling) -> float:
    wavelength = 2 * math.pi / frequency
    if wavelength < scaling.original_context / scaling.high_freq_factor:
        return frequency
    if (
        wavelength > scaling.original_context / scaling.low_freq_factor
        or scaling.low_freq_factor == scaling.high_freq_factor
    ):
        return frequency / scaling.factor
    ramp = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1 - ramp) * frequency / scaling.factor + ramp * frequency


def _yarn(plain: tuple[float, ...], scaling: YarnScaling, theta: float) -> tuple[float, ...]:
    rotary_dim = 2 * len(plain)

    def pair_of(turns: float) -> float:
        """The pair, as a real number, that makes this many turns within the original context."""
        return len(plain) * math.log(scaling.original_context / (2 * math.pi * turns)) / math.log(theta)

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    width = last - first or 0.001  # a ramp of no width is a step
    ramps = (min(max((i - first) / width, 0.0), 1.0) for i in range(len(plain)))
    return tuple(f * (1 - ramp) + f / scaling.factor * ramp for f, ramp in zip(plain, ramps, strict=True))
