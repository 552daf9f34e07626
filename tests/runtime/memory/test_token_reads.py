"""What a token reads of weights that do not all stay in memory."""

import pytest

from mlxr.compiler.artifact import CTensor
from mlxr.runtime.memory.token_reads import TokenReads, always_read, resident_tensors


def tensor(name: str, size: int, layout: str = "packed", matrices: int = 1, chosen: int = 1) -> CTensor:
    return CTensor(
        name=name,
        layout=layout,
        format="q8_0",
        shape=(16, 32),
        size_bytes=size,
        parts=(),
        matrices=matrices,
        chosen=chosen,
    )


MODEL = [
    tensor("embedding", 700),
    tensor("norm", 50, "vector"),
    tensor("layers.0.attention.o", 100),
    tensor("layers.0.mlp.experts.up", 800, matrices=8, chosen=2),
    tensor("layers.0.mlp.experts.down", 400, matrices=8, chosen=2),
    tensor("output", 300),
]


def test_experts_and_tables_are_read_in_part() -> None:
    assert TokenReads.of(MODEL) == TokenReads(always=400, routed=300, experts=1200)
    tied = TokenReads.of(MODEL[:-1])
    assert tied == TokenReads(always=800, routed=300, experts=1200), "the embedding is the output's matrix too"


def test_as_much_is_resident_as_fits() -> None:
    names = [[t.name for t in MODEL if t in resident_tensors(MODEL, most)] for most in (99, 100, 399, 400, 5000)]
    o, output = "layers.0.attention.o", "output"
    assert names == [[], [o], [o], [o, output], [o, output]]
    assert [t.name for t in always_read(MODEL)] == [o, output]


@pytest.mark.parametrize(
    ("resident", "cached", "missing"),
    [
        (400, 1200, 0),
        (400, 900, 75),  # a quarter of the experts is missing
        (400, 0, 300),
        (100, 900, 150),  # half of them, as the rest of what every token reads is kept as well
        (100, 299, 600),  # nothing is kept of what is read from first to last
        (0, 5000, 0),
    ],
)
def test_what_is_missing(resident: int, cached: int, missing: float) -> None:
    assert TokenReads.of(MODEL).missing(resident, cached) == pytest.approx(missing)


def test_a_model_without_experts() -> None:
    reads = TokenReads.of(MODEL[2:3])
    assert reads.missing(0, 100) == 0 and reads.missing(0, 99) == 100
    assert reads.seconds(50, disk_rate=25, memory_rate=100) == 2 + 1
