"""A program holds what its formats need and no more: that keeps the time in which it compiles low."""

import pytest

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.cpu.format_headers import affine_definitions, format_headers
from mlxr_tests.cpu_specs import BLOCKS
from mlxr_tests.specs import compiled, small_spec

NEEDS = {"q5_1": ["q5_bits"], "q3_k": ["k_scales"], "iq4_xs": ["iq4_nl"], "mxfp4_mlx": ["mxfp4"]}


def test_floats_need_none() -> None:
    floats = [WeightFormat.F32, WeightFormat.BF16]
    assert format_headers(floats) == () and affine_definitions(floats) == ""


@pytest.mark.parametrize("fmt", [fmt for fmt in WeightFormat if fmt.is_quantised], ids=str)
def test_a_format_comes_after_what_it_builds_on(fmt: WeightFormat) -> None:
    names = format_headers([fmt])
    assert names[:3] == ("formats/integer_dot.h", "formats/interleave.h", "formats/panels.h")
    assert names[-1] == f"formats/{fmt.template}.h" and len(names) == len(set(names))
    for needed in NEEDS.get(fmt, ()):
        assert f"formats/{needed}.h" in names[3:-1]
    assert affine_definitions([fmt]).count(f"MLXR_AFFINE_FORMAT({fmt},") == (fmt.affine is not None)


def test_a_program_holds_its_formats_alone() -> None:
    weights = {"default": "affine4_g64_bf16", "output": "affine8_g64_bf16", "tensors": {"*.o": "q5_1"}}
    text = compiled(small_spec(weights=weights, **BLOCKS), target="cpu").source("cpu")
    for once in (
        "MLXR_AFFINE_FORMAT(affine4_g64_bf16, 4, 64, bf16)",
        "MLXR_AFFINE_FORMAT(affine8_g64_bf16, 8, 64, bf16)",
        "// ==== formats/affine.h",
        "// ==== formats/q5_bits.h",
        "// ==== formats/q5_1.h",
    ):
        assert text.count(once) == 1, once
    others = {"q8_0", "q4_k", "k_scales", "iq4_nl", "mxfp4"}
    assert not [other for other in others if f"formats/{other}.h" in text]
