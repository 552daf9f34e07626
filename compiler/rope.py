"""RoPE frequencies, computed once at compile time.

Source: RoFormer (Su et al. 2021); linear scaling from kaiokendev and Chen et al. 2023; the piecewise scaling from
Meta's Llama 3.1 release.
"""

import math

from mlxr.compiler.spec.model import LinearScaling, Llama3Scaling, Rope


def rope_frequencies(rope: Rope, rotary_dim: int) -> tuple[float, ...]:
    """Radians per position of each rotated pair: rotary_dim / 2 numbers, the fastest first."""
    plain = [rope.theta ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)]
    scaling = rope.scaling
    if isinstance(scaling, LinearScaling):
        return tuple(f / scaling.factor for f in plain)
    if isinstance(scaling, Llama3Scaling):
        return tuple(_llama3(f, scaling) for f in plain)
    return tuple(plain)


def _llama3(frequency: float, scaling: Llama3Scaling) -> float:
    wavelength = 2 * math.pi / frequency
    if wavelength < scaling.original_context / scaling.high_freq_factor:
        return frequency
    if wavelength > scaling.original_context / scaling.low_freq_factor:
        return frequency / scaling.factor
    ramp = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1 - ramp) * frequency / scaling.factor + ramp * frequency
