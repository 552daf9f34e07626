"""Formats in planes are told from the shapes and types of their tensors."""

import pytest

from mlxr.compiler.formats.stored_planes import plane_format, plane_names
from mlxr.compiler.formats.weight_format import WeightFormat

PLANES = [format for format in WeightFormat if len(format.planes) > 1]


@pytest.mark.parametrize("format", PLANES, ids=str)
def test_every_format_is_found_by_its_own_planes(format):
    numbers, scales, *biases = format.planes
    described = (8 * numbers.block_bytes, str(scales.dtype).upper())
    assert plane_format(*described, has_biases=bool(biases), group=format.block_elements) is format
    assert plane_format(*described, has_biases=bool(biases), group=2 * format.block_elements) is not format
    assert plane_format(*described, has_biases=not biases, group=format.block_elements) is not format
    assert plane_format(8 * numbers.block_bytes, "F64", has_biases=bool(biases), group=format.block_elements) is None


def test_a_group_is_needed_where_several_formats_have_blocks_alike():
    assert plane_format(256, "F16", has_biases=True) is None  # 8 bits in groups of 32, or 4 in groups of 64
    assert plane_format(256, "F16", has_biases=True, group=64) == "affine4_g64_f16"
    assert plane_format(128, "U8", has_biases=False) == "mxfp4_mlx"


@pytest.mark.parametrize(
    ("name", "scales", "biases"),
    [
        ("model.q.weight", "model.q.scales", "model.q.biases"),
        ("experts.down_blocks", "experts.down_scales", "experts.down_biases"),
        ("experts.down", "experts.down.scales", "experts.down.biases"),
    ],
)
def test_names_of_planes(name, scales, biases):
    assert plane_names(name) == (name, scales, biases)
