"""What the head that guesses reads and writes: Metal's kernels against the reference, several sequences at once."""

from types import SimpleNamespace
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import HIDDEN
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.ops.hidden import GuessInput, GuessWrite, HiddenWrite
from mlxr.compiler.ir.ops.join_columns import JoinColumns
from mlxr.compiler.targets.metal.kernels.hidden import HiddenKernel
from mlxr.compiler.targets.metal.kernels.join_columns import JoinColumnsKernel
from mlxr.runtime.hosts.mlx_ops import evaluate
from mlxr_tests.kernel_bench import run_kernel

pytestmark = pytest.mark.usefixtures("kernel_host")

WIDTH, SIZE, BLOCKS = 40, 4, 12
TABLES = np.random.default_rng(1).permutation(BLOCKS).reshape(3, 4).astype(np.int32)
START, POSITIONS = np.array([0, 3, 4, 6], np.int32), np.array([5, 6, 7, 2, 10, 11], np.int32)
PLACE: Any = SimpleNamespace(
    arena=SimpleNamespace(token=mx.array(0), geometry=SimpleNamespace(block_size=SIZE, mode="paged"))
)


def check(attrs: Any, does: Any, inputs: dict[str, np.ndarray], *, one_each: bool = False) -> None:
    """Runs the kernel, of layer norms or none, and compares its results and the store with the reference's."""
    rng, first, gives = np.random.default_rng(0), getattr(attrs, "hidden_first", False), getattr(attrs, "gives", None)
    names = ["weight", "bias", *(["hidden_weight", "hidden_bias"] if does == "read" else [])] if attrs.kind else []
    numbers = {name: rng.standard_normal(WIDTH).astype(np.float32) for name in names}
    tokens, sequences = len(inputs["slots"] if "slots" in inputs else inputs["positions"]), len(TABLES)
    numbers["x"] = rng.standard_normal((tokens, WIDTH)).astype(np.float32)
    store = rng.standard_normal((BLOCKS, SIZE, WIDTH)).astype(np.float32)
    given = {name: mx.array(value) for name, value in (numbers | inputs).items()}
    theirs, mine = (mx.array(store) for _ in range(2))
    want = evaluate(attrs, given | {HIDDEN: theirs, "token": mx.array(0)}, PLACE)
    kernel = HiddenKernel(
        *("hidden", does, WIDTH, attrs.kind, 1e-5, *[DType.F32 if names else None] * 2, first, gives),
        *(DType.F32, DType.F32, "paged", SIZE, one_each),
    )
    if "block_tables" in inputs:
        given["block_tables"] = mx.array(np.concatenate([[TABLES.shape[1]], TABLES.reshape(-1)]).astype(np.int32))
        given["dims"] = mx.array([len(POSITIONS), len(TABLES), len(inputs["rows"]), 0, 0, 0, 0, 0], dtype=mx.uint32)
    grid = {"keep": (tokens, 1, 1), "guess": (sequences, 1, 1), "read": (tokens, 2, 1)}[does]
    shapes = {"out": (tokens, 2 * WIDTH), "row": (tokens, WIDTH), "token_out": (8,)}
    own = given | {HIDDEN: mine, "token": mx.full(8, 6, dtype=mx.uint32)}
    got = run_kernel(kernel, own, shapes, grid, in_place=(HIDDEN,))
    assert (np.array(got["token_out"]) == 7).all()
    np.testing.assert_allclose(np.array(mine), np.array(theirs), rtol=2e-6, atol=2e-6)
    assert (np.array(theirs) != store).any() == (does != "read")
    if does == "read":
        for port in ("out", "row") if gives else ("out",):
            np.testing.assert_allclose(np.array(got[port]), np.array(want[port]), rtol=2e-6, atol=2e-6)


def slots() -> np.ndarray:
    sequence = np.repeat(np.arange(3), np.diff(START))
    return (TABLES[sequence, POSITIONS // SIZE] * SIZE + POSITIONS % SIZE).astype(np.int32)


def test_rows_are_kept_in_their_slots() -> None:
    """Padding tokens keep none."""
    for kind in ("layer", None):
        check(HiddenWrite(kind, 1e-5), "keep", {"slots": np.append(slots(), np.int32(-1))})


@pytest.mark.parametrize(("hidden_first", "gives"), [(False, "raw"), (True, "normed"), (True, None)])
def test_kept_rows_lie_beside_embeddings(hidden_first: bool, gives: Literal["raw", "normed"] | None) -> None:
    check(GuessInput("layer", 1e-5, hidden_first, gives), "read", {"slots": slots()})


def test_guesses_go_to_the_next_slots() -> None:
    """Of prompts those that the batch asks for, of sequences with one token all."""
    of_prompts = {"rows": np.array([2, 5], np.int32), "positions": POSITIONS, "query_start": START}
    check(GuessWrite("layer", 1e-5), "guess", of_prompts | {"block_tables": TABLES})
    each = {"rows": np.arange(3, dtype=np.int32), "query_start": np.arange(4, dtype=np.int32)}
    tables = {"positions": POSITIONS[[2, 3, 4]], "block_tables": TABLES}
    check(GuessWrite("layer", 1e-5), "guess", each | tables, one_each=True)
    check(GuessWrite(None, 1e-5), "guess", each | tables, one_each=True)


def test_columns_of_three_layers_are_joined() -> None:
    """More columns than threads, and columns of which threads have unequally many."""
    rng = np.random.default_rng(0)
    for width in (WIDTH, 1028):
        parts = {port: rng.standard_normal((3, width)).astype(np.float32) for port in JoinColumns.inputs}
        kernel = JoinColumnsKernel("join_columns", width, DType.F32)
        given = {port: mx.array(part) for port, part in parts.items()}
        joined = run_kernel(kernel, given, {"out": (3, 3 * width)}, (3, 1, 1))["out"]
        np.testing.assert_array_equal(np.array(joined), np.concatenate(list(parts.values()), axis=1))
