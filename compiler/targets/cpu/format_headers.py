"""The headers of templates/cpu/formats that hold what a program's weight formats need, in order."""

from collections.abc import Collection

from mlxr.compiler.formats.weight_format import WeightFormat

_BASE = ("integer_dot", "interleave", "panels")
_NEEDS = {
    WeightFormat.Q5_0: ("q5_bits",),
    WeightFormat.Q5_1: ("q5_bits",),
    WeightFormat.Q3_K: ("k_scales",),
    WeightFormat.Q4_K: ("k_scales",),
    WeightFormat.Q5_K: ("k_scales",),
    WeightFormat.IQ4_XS: ("iq4_nl",),
}
"""What other headers a format's own builds on."""


def format_headers(formats: Collection[WeightFormat]) -> tuple[str, ...]:
    """Their paths under templates/cpu. Formats that are not quantised need none."""
    quantised = [held for held in WeightFormat if held in formats and held.is_quantised]
    names = dict.fromkeys(name for held in quantised for name in (*_NEEDS.get(held, ()), _own(held)))
    return tuple(f"formats/{name}.h" for name in ((*_BASE, *names) if names else ()))


def affine_definitions(formats: Collection[WeightFormat]) -> str:
    """C text after the headers: the formats of which one header serves many."""
    found = [(held, held.affine) for held in WeightFormat if held in formats]
    lines = [f"MLXR_AFFINE_FORMAT({held}, {a.bits}, {a.group}, {a.scale})\n" for held, a in found if a]
    return "".join(lines)


def _own(held: WeightFormat) -> str:
    if held.affine:
        return "affine"
    return "mxfp4" if held is WeightFormat.MXFP4_MLX else str(held)
