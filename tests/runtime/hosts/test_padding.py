"""Steps of prompts that are filled up: nothing that is added changes a number, and no new length builds anything."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.compiler.artifact import Artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.cache.sequence_states import NO_STATE, SequenceStates
from mlxr.runtime.engine.warm_up import decode_contexts, prompt_sizes, warm_up
from mlxr.runtime.hosts.batch import Batch, BatchRequest, BlocksOfGroup
from mlxr.runtime.hosts.binding import batch_arrays, batch_dims
from mlxr.runtime.hosts.cuda import device
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.mlx.padding import NO_SLOT, padded_batch, state_columns, table_columns
from mlxr_tests.arenas import nan_arena
from mlxr_tests.fake_card import SimLauncher, Sums, use_card
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.storyteller import TINY, tiny_spec

pytestmark = pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")

HALF: dict[str, Any] = {"activation_dtype": "bf16", "cache__dtype": "bf16", "weights": {"default": "bf16"}}
CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "f32": ({}, {}),
    "q8 cache, paged": ({"cache": {"dtype": "q8", "block_size": 4, "max_sequences": 3, "mode": "paged"}}, {}),
    "MLX's matmul": (HALF, {"mlx_min_rows": 2}),
    "matrix instructions": (
        HALF | {"model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}},
        {"prefill_mma": 1, "prefill_rows": 16, "mlx_min_rows": 0},
    ),
    "experts": (
        {
            "model__tensor_names": "canonical",
            "model__mlp": {"intermediate_size": 32, "experts": {"count": 5, "per_token": 2, "router": "softmax_topk"}},
        },
        {},
    ),
}
STEPS: tuple[tuple[tuple[int, ...], ...], ...] = (((0, 5),), ((1, 9), (2, 2)), ((0, 1), (1, 3)), ((0, 7), (2, 1)))
"""Of each step, (sequence, tokens) of its parts."""


def numbers(monkeypatch: pytest.MonkeyPatch, artifact: Artifact) -> tuple[list[np.ndarray], list[Any], list[int]]:
    """Logits of every step, the arena after all of them, and the tokens that each step was launched with."""
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    arena, launched = nan_arena(Arena(artifact.plan.arena)), []
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], arena)
    launch_step = host.launch_step
    monkeypatch.setattr(
        host, "launch_step", lambda step, dims, *rest: launched.append(dims["tokens"]) or launch_step(step, dims, *rest)
    )
    pager = Pager.from_geometry(artifact.plan.arena)
    ids, logits, random = [pager.add_sequence() for _ in range(3)], [], np.random.default_rng(3)
    for parts in STEPS:
        requests = [
            BatchRequest(ids[s], random.integers(0, 61, count).tolist(), pager.length(ids[s])) for s, count in parts
        ]
        logits.append(np.array(host.read(host.step(Batch.build(requests, pager, artifact.plan.query_tile)))))
    return (
        logits,
        [np.array(one.view(mx.uint8)) for one in (arena.stores["k_arena"], arena.stores["v_arena"])],
        launched,
    )


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("case", CASES)
def test_what_is_added_changes_no_number(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    changes, sizes = CASES[case]
    exact, filled = (
        numbers(monkeypatch, compiled(small_spec(**changes), Geometry.of(partition=16, chunk_padding=padding, **sizes)))
        for padding in (0, 8)
    )
    assert exact[2] == [5, 11, 4, 8] and filled[2] == [8, 16, 8, 8]
    for got, want in zip((*filled[0], *filled[1]), (*exact[0], *exact[1]), strict=True):
        assert np.array_equal(got, want)


@pytest.mark.usefixtures("eager")
def test_what_is_added_to_texts_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an encoder, which reads types of tokens."""
    model = {"context": 16, "token_types": 2, "attention__causal": False, "tensor_names": "canonical"}
    spec = small_spec(**{f"model__{key}": value for key, value in model.items()}, output="hidden", prefill_chunk=16)
    rows = []
    for padding in (0, 8):
        artifact = compiled(spec, Geometry.of(chunk_padding=padding))
        use_card(monkeypatch, artifact, SimLauncher(artifact))
        host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
        pager = Pager.from_geometry(artifact.plan.arena)
        request = BatchRequest(pager.add_sequence(), [5, 3, 8, 2, 9], 0, "all", second=2)
        batch = Batch.build([request], pager, artifact.plan.query_tile)
        assert batch.token_types is not None and padded_batch(batch, artifact.plan).num_tokens == (8 if padding else 5)
        assert len(padded_batch(batch, artifact.plan).token_types) == (8 if padding else 5)
        rows.append(np.array(host.read(host.step(batch))))
        one = Batch.build([BatchRequest(pager.add_sequence(), [5], 0, "all")], pager, artifact.plan.query_tile)
        assert np.isfinite(np.array(host.read(host.step(one)))).all(), "a single token is a step of its own kind"
    assert np.array_equal(*rows)


def test_a_filled_up_batch_has_the_shapes_of_its_size() -> None:
    plan = compiled(small_spec(), Geometry.of(chunk_padding=8)).plan
    found = set()
    for counts in ((3, 9), (1, 10), (6, 6), (12, 4)):
        pager = Pager.from_geometry(plan.arena)
        requests = [BatchRequest(pager.add_sequence(), [7] * count, 0) for count in counts]
        batch = Batch.build(requests, pager, plan.query_tile)
        batch = replace(batch, others=(BlocksOfGroup(batch.slots, batch.block_tables),))
        filled, count = padded_batch(batch, plan), batch.num_tokens
        assert np.array_equal(filled.others[0].slots, filled.slots)
        found.add((filled.num_tokens, filled.num_tiles, len(filled.slots), len(filled.positions)))
        assert np.array_equal(filled.slots[:count], batch.slots) and (filled.slots[count:] == NO_SLOT).all()
        assert np.array_equal(filled.query_tiles[: batch.num_tiles], batch.query_tiles)
        nobodys = filled.query_tiles[batch.num_tiles :]
        rows = [first + i for says, first in nobodys.tolist() for i in range(-1 - says)]
        assert rows == list(range(count, filled.num_tokens)), "each added token is in one tile"
        assert batch_dims(filled)["context"] == batch_dims(batch)["context"]
    assert len(found) == 1


def test_no_length_that_fits_a_size_is_traced_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(small_spec(cache__max_sequences=1), Geometry.of(chunk_padding=8))
    launch = Sums()
    use_card(monkeypatch, artifact, launch)
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    pager, launched = Pager.from_geometry(artifact.plan.arena), []
    for length in (5, 7, 8, 3, 12, 9, 16, 2):
        launch.calls.clear()
        seq_id = pager.add_sequence()
        host.read(host.step(Batch.build([BatchRequest(seq_id, [1] * length, 0)], pager, artifact.plan.query_tile)))
        pager.free(seq_id)
        launched.append(bool(launch.calls))
    assert launched == [True, False, False, False, True, False, False, False]


def test_after_loading_nothing_is_built_for_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the first one, nor for a length never seen, nor for decoding into the second partition."""
    spec = tiny_spec(model={"context": 96}, prefill_chunk=64)
    artifact = compile_spec(spec, Geometry.of(chunk_padding=16, partition=32)).artifact
    launch = Sums()
    use_card(monkeypatch, artifact, launch)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    told: list[str] = []
    model = mlxr.load(artifact, TINY, host="cuda", progress=lambda what, done, total: told.append(what))
    assert "steps" in told and launch.calls, "these were built at load"
    assert not model.host.launches and not model.pager.num_sequences, "and count for nothing"
    launch.calls.clear()
    for length in (1, 2, 37, 63, 64, 65, 90):
        assert len(model.generate(list(range(1, length + 1)), max_tokens=4).token_ids) == 4
    assert not launch.calls
    assert model.host.launches


@pytest.mark.parametrize("layers", [3, 8])
def test_steps_whose_last_part_makes_nothing_that_is_read(monkeypatch: pytest.MonkeyPatch, layers: int) -> None:
    """A chunk without logits ends with the last layer's access of the arena, and the last part may begin after it."""
    spec = small_spec(model__num_layers=layers, model__context=128, prefill_chunk=32, cache__max_sequences=1)
    artifact = compiled(spec, Geometry.of(chunk_padding=8))
    use_card(monkeypatch, artifact, Sums())
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    pager = Pager.from_geometry(artifact.plan.arena)
    warm_up(host, pager)
    assert not pager.num_sequences


def test_what_is_built_at_load_covers_every_size_and_every_way_to_attend() -> None:
    plan = compiled(small_spec(model__context=100, prefill_chunk=64), Geometry.of(chunk_padding=16, partition=32)).plan
    assert prompt_sizes(plan, plan.first, plan.arena.context) == [8, 16, 32, 48, 64]
    assert decode_contexts(plan, plan.arena.context) == [(1, 1), (1, 33), (3, 1)]
    short = compiled(small_spec(model__context=37, prefill_chunk=64), Geometry.of(chunk_padding=16)).plan
    assert prompt_sizes(short, short.first, short.arena.context) == [8, 16, 32, 37] and short.padded_tokens(37) == 48
    exact = compiled(small_spec(**HALF), Geometry.of(mlx_min_rows=20)).plan
    assert not exact.padded_sizes and {2, 19, 20, 32} >= set(prompt_sizes(exact, exact.first, exact.arena.context)) >= {
        2,
        20,
        32,
    }


def test_steps_for_mlxs_attention_are_not_filled_up() -> None:
    """It aligns the last query with the last key."""
    spec = small_spec(**HALF, model__attention={"num_heads": 4, "num_kv_heads": 2, "head_dim": 32})
    plan = compiled(spec, Geometry.of(chunk_padding=8, mlx_min_tokens=8, mlx_min_rows=0)).plan
    assert plan.padded_sizes == () and plan.padded_tokens(5) == 5


def test_tables_of_states_have_two_widths() -> None:
    """Two of decode, the most of all else, so that a step of a new width needs no new trace."""
    states = SequenceStates(9, 2, 16)
    pager = Pager(16, 16, 8, 2, states=states)
    ids = [pager.add_sequence(), pager.add_sequence()]
    states.want(ids[0], prompt_length=20)
    for tokens, columns in (([20, 3], 18), ([1, 1], 2)):
        requests = [BatchRequest(i, [1] * n, pager.length(i)) for i, n in zip(ids, tokens, strict=True)]
        batch = Batch.build(requests, pager, 32)
        assert state_columns(batch, 18) == columns
        numbers = batch_arrays(batch, None, columns)["state_table"]
        assert numbers.shape == (1 + 2 * columns,) and numbers[0] == columns
        rows, width = numbers[1:].reshape(2, columns), batch.state_table.shape[1]
        assert rows[:, :width].tolist() == batch.state_table.tolist() and (rows[:, width:] == NO_STATE).all()


@pytest.mark.parametrize(("length", "columns"), [(20, 256), (16 * 256, 256), (16 * 256 + 1, 1024), (16 * 2000, 2048)])
def test_block_tables_have_one_of_few_widths_and_begin_with_it(length: int, columns: int) -> None:
    """At least 256 columns, then 4 times as many, and never more than the plan's; so traces are few, uploads short."""
    pager = Pager(2048, 16, 2048, 1)
    batch = Batch.build([BatchRequest(pager.add_sequence(), [1] * length, 0)], pager, 32)
    assert table_columns(batch, 2048) == columns
    numbers = batch_arrays(batch, columns)["block_tables"]
    used = -(-length // 16)
    assert numbers.shape == (1 + columns,) and numbers[0] == columns
    assert numbers[1 : 1 + used].tolist() == batch.block_tables[0, :used].tolist() and not any(numbers[1 + used :])
