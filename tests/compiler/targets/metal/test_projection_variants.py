"""Which kernel makes a projection of how many rows: each number has one, the preferred one of those that take it."""

import random

import pytest

from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import layout_of
from mlxr.compiler.schedule.geometry import Geometry, OneRow
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernels.library_matmul import library_ranges
from mlxr.compiler.targets.metal.kernels.projection_variants import ProjectionVariant, divided, variants_of


def projection(
    format: WeightFormat = WeightFormat.Q4_K,
    activation: DType = DType.BF16,
    most_rows: int = 128,
    *,
    one_row_alone: bool = True,
    deterministic: bool = False,
    **sizes: int,
) -> ProjectionFacts:
    layout = layout_of([(format, 96)], 256)
    return ProjectionFacts(
        label="o",
        out_features=96,
        layout=layout,
        activation=activation,
        norm=None,
        epilogue=Epilogue(out=activation),
        gather=False,
        one_row_alone=one_row_alone and not deterministic,
        deterministic=deterministic,
        dim="tokens",
        most_rows=most_rows,
        choice=GeometryTable(Geometry.of(**sizes)).choose(Site.of_weight("o", layout)),
    )


def rows_of(p: ProjectionFacts) -> str:
    return ", ".join(f"{v.first}..{v.last} {v.kernel.label}" for v in divided(variants_of(p), p.most_rows))


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (projection(), "1..1 o, 2..16 o_rows, 17..128 o_gemm"),
        (projection(one_row_alone=False), "1..16 o_rows, 17..128 o_gemm"),
        (projection(most_rows=1), "1..1 o"),
        (projection(most_rows=16), "1..1 o, 2..16 o_rows"),
        (projection(WeightFormat.BF16), "1..1 o, 2..128 o_rows"),
        (projection(gemm_mma=1), "1..1 o, 2..16 o_rows, 17..128 o_gemm_mma"),
        (projection(activation=DType.F32, gemm_mma=1), "1..1 o, 2..16 o_rows, 17..128 o_gemm"),
        (
            projection(gemm_mma=1, mlx_quantised_min_rows=48),
            "1..1 o, 2..16 o_rows, 17..47 o_gemm_mma, 48..128 o_gemm",
        ),
        (
            projection(mma_min_rows=4, mma_max_rows=20),
            "1..1 o, 2..3 o_rows, 4..8 o_mma8, 9..16 o_mma16, 17..20 o_mma32, 21..128 o_gemm",
        ),
        (
            projection(mma_min_rows=2, mma_max_rows=100),
            "1..1 o, 2..8 o_mma8, 9..16 o_mma16, 17..32 o_mma32, 33..100 o_mma64, 101..128 o_gemm",
        ),
        (
            projection(WeightFormat.BF16, mma_min_rows=33, mma_max_rows=40),
            "1..1 o, 2..32 o_rows, 33..40 o_mma64, 41..128 o_rows",
        ),
        (projection(WeightFormat.BF16, DType.F32, mma_min_rows=2), "1..1 o, 2..128 o_rows"),
        (projection(deterministic=True, gemm_mma=1, mlx_quantised_min_rows=2), "1..2 o_rows, 3..128 o_rows"),
        (
            projection(deterministic=True, mma_min_rows=9, mma_max_rows=20, mlx_min_rows=2),
            "1..8 o_mma8, 9..16 o_mma16, 17..32 o_mma32, 33..128 o_mma64",
        ),
    ],
)
def test_who_takes_how_many_rows(p: ProjectionFacts, expected: str) -> None:
    assert rows_of(p) == expected


def test_matrix_tiles_do_not_yield_to_mlx() -> None:
    p = projection(WeightFormat.BF16, mma_min_rows=2, mma_max_rows=8, mlx_min_rows=5)
    assert p.library_rows == 5
    assert {
        variant.kernel.label: variant.yields for variant in variants_of(p) if variant.first > 1 or variant.last > 1
    } == {
        **dict.fromkeys(("o_mma8", "o_mma16", "o_mma32", "o_mma64"), False),
        "o_rows": True,
    }


@pytest.mark.parametrize(
    ("p", "ranges"),
    [
        (projection(), []),
        (projection(WeightFormat.BF16, mlx_min_rows=5), [(5, 128)]),
        (projection(mlx_quantised_min_rows=12), [(12, 128)]),
        (projection(mlx_quantised_min_rows=17), [(17, 128)]),
        (projection(WeightFormat.BF16, mlx_min_rows=3, mma_min_rows=5, mma_max_rows=20), [(3, 4), (21, 128)]),
        (projection(WeightFormat.BF16, mlx_min_rows=3, mma_min_rows=2, mma_max_rows=20), [(21, 128)]),
        (projection(mma_min_rows=2, mma_max_rows=128, mlx_quantised_min_rows=48), []),
    ],
)
def test_which_rows_mlx_takes_from_the_kernels_that_yield(p: ProjectionFacts, ranges: list[tuple[int, int]]) -> None:
    """Adjacent ranges are one: a call does not care which kernels it replaces."""
    assert library_ranges(p, divided(variants_of(p), p.most_rows)) == ranges


@pytest.mark.parametrize(
    ("p", "rows"),
    [
        (projection(WeightFormat.BF16), 32),
        (projection(WeightFormat.BF16, mlx_min_rows=1), 2),
        (projection(WeightFormat.BF16, mlx_min_rows=1, one_row_alone=False), 1),
        (projection(WeightFormat.BF16, mlx_min_rows=0), None),
        (projection(WeightFormat.BF16, mlx_min_rows=129), None),
        (projection(WeightFormat.F16), None),
        (projection(), None),
        (projection(mlx_quantised_min_rows=48), 48),
        (projection(activation=DType.F32, mlx_quantised_min_rows=48), None),
    ],
)
def test_when_mlx_takes_it(p: ProjectionFacts, rows: int | None) -> None:
    assert p.library_rows == rows


def test_each_number_of_rows_goes_to_the_first_that_takes_it() -> None:
    """Random lists, number by number."""
    rng, p = random.Random(5), projection()
    kernel = variants_of(p)[0].kernel
    for _ in range(200):
        most = rng.randint(1, 30)
        ranges = [(rng.randint(1, 30), rng.randint(1, 30)) for _ in range(rng.randint(0, 4))]
        variants = [
            ProjectionVariant(kernel, a, b, (OneRow,), (str(n),)) for n, (a, b) in enumerate([*ranges, (1, most)])
        ]
        parts = divided(variants, most)
        assert [row for part in parts for row in range(part.first, part.last + 1)] == list(range(1, most + 1))
        for part in parts:
            for row in range(part.first, part.last + 1):
                expected = next(v for v in variants if v.first <= row <= v.last)
                assert part.unused == expected.unused
