"""The arena and the history of an engine, compared with what its requests must have used."""

import asyncio
import json
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

import mlxr
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr.runtime.cache.arena_blocks import block_bytes
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.arena_state import arena_state
from mlxr.runtime.engine.core_stats import CoreStats, StepRecord
from mlxr.runtime.engine.errors import EngineError
from mlxr.server.inspector import history as history_module
from mlxr.server.inspector.arena_view import ArenaView, GroupView, SequenceView, arena_view, view_of
from mlxr.server.inspector.history import History, watch
from mlxr_tests.hash_host import HashEngine
from mlxr_tests.specs import small_spec
from mlxr_tests.storyteller import TINY


def view(engine: HashEngine) -> ArenaView:
    model: Any = SimpleNamespace(pager=engine.pager, core=engine.core, host=engine.host, arena=engine.host.arena)
    return view_of(arena_state(model))


def counts(group: GroupView) -> tuple[int, int, int, int]:
    return group.used, group.shared, group.cached, group.free


def blocks(sequence: SequenceView) -> tuple[tuple[int, int], ...]:
    (held,) = sequence.groups
    assert held.first == 0
    return held.blocks


def test_blocks_of_requests() -> None:
    engine = HashEngine(num_blocks=16, block_size=4)
    (empty,) = view(engine).groups
    assert empty.states == "f" * 16 and (empty.layers, empty.window, empty.block_bytes) == ((0,), None, 8 * 4)
    assert view(engine).sequences == () and view(engine).slots is None
    prompt = list(range(1, 11))
    engine.add(prompt, max_tokens=8)
    engine.core.step()
    first = view(engine)
    assert counts(first.groups[0]) == (3, 0, 0, 13), "10 tokens in blocks of 4"
    (sequence,) = first.sequences
    assert (sequence.prompt_tokens, sequence.tokens, blocks(sequence)) == (10, 10, ((0, 2),))
    engine.add([*prompt[:8], 30, 31], max_tokens=8)
    engine.core.step()
    both = view(engine)
    assert counts(both.groups[0])[:2] == (2, 2), "two full blocks are the same"
    assert [blocks(s) for s in both.sequences] == [((0, 2),), ((0, 1), (3, 3))]
    assert len({s.request for s in both.sequences}) == 2
    engine.run()
    rest = view(engine)
    idle = engine.pager.num_idle
    assert rest.sequences == () and idle > 0 and counts(rest.groups[0]) == (0, 0, idle, 16 - idle)


def test_blocks_of_a_window() -> None:
    engine = HashEngine(num_blocks=128, block_size=4, context=400, window=8)
    engine.add([1 + i % 7 for i in range(320)], max_tokens=40)
    while engine.pager.num_sequences == 0 or engine.pager.length(0) < 320:
        engine.core.step()
    told = json.loads(view(engine).model_dump_json())
    whole, windowed = told["groups"]
    assert [(group["layers"], group["window"], group["block_bytes"]) for group in (whole, windowed)] == [
        ([0], None, 32),
        ([1], 8, 32),
    ]
    (sequence,) = told["sequences"]
    held = sequence["groups"][1]
    assert sequence["groups"][0] == {"first": 0, "blocks": [[0, 79]]} and whole["used"] == 80
    assert held["first"] > 0 and held["first"] + windowed["used"] == 80, "the blocks before are given back"
    assert sum(last - first + 1 for first, last in held["blocks"]) == windowed["used"] == windowed["states"].count("u")
    engine.run()
    assert [counts(group)[:2] for group in view(engine).groups] == [(0, 0)] * 2 and view(engine).sequences == ()


@pytest.mark.parametrize(("pattern", "layers"), [(["windowed", "full"], [[1], [0]]), (["windowed"], [[], [0, 1]])])
def test_groups_of_a_plan(pattern: list[str], layers: list[list[int]]) -> None:
    types = {"windowed": {"attention": {"sliding_window": 40}}, "full": {}}
    spec = small_spec(
        model__num_layers=2,
        model__context=1024,
        model__layer_types={name: types[name] for name in pattern},
        model__layer_pattern=pattern,
        cache={"max_sequences": 1, "block_size": 16, "mode": "paged"},
    )
    geometry = arena_geometry(spec, GeometryTable())
    model: Any = SimpleNamespace(
        pager=Pager.from_geometry(geometry),
        core=SimpleNamespace(scheduler=SimpleNamespace(running=[])),
        host=SimpleNamespace(block_bytes=block_bytes(geometry)),
        arena=SimpleNamespace(geometry=geometry),
    )
    groups = view_of(arena_state(model)).groups
    assert [[*group.layers] for group in groups] == layers and [group.window for group in groups] == [None, 40]
    assert [group.num_blocks for group in groups] == [64, geometry.groups[1].num_blocks] and groups[1].num_blocks < 64
    total = sum(group.num_blocks * group.block_bytes for group in groups)
    assert total == geometry.size_bytes, "a first group without layers takes no memory"


def test_slots_of_states() -> None:
    engine = HashEngine(state_slots=20)
    prompt = list(range(1, 11))
    engine.add(prompt, max_tokens=8)
    engine.core.step()
    told = json.loads(view(engine).model_dump_json())
    (sequence,), slots = told["sequences"], told["slots"]
    assert (slots["num_slots"], slots["slot_bytes"], len(slots["states"])) == (20, 8, 20)
    (after,) = sequence["slots"]
    assert after["tokens"] == 10 and slots["states"][after["slot"]] == "u" and slots["used"] == 1
    assert len(slots["snapshots"]) == 2 and slots["cached"] == 1, "after the last full block, and at the end"
    assert after["slot"] in slots["snapshots"]
    engine.run()
    rest = view(engine).slots
    assert rest is not None and rest.used == rest.shared == 0
    assert rest.cached == len(rest.snapshots) > 0 and {rest.states[slot] for slot in rest.snapshots} == {"c"}


def test_a_contiguous_arena_keeps_its_last_sequence() -> None:
    pager, tokens = Pager(6, 4, 6, 1, contiguous=True), list(range(10))
    hashes = BlockHashes(root_digest("model"), 4)
    seq_id = pager.add_sequence()
    pager.append(seq_id, 10)
    pager.take_copies()
    assert pager.block_states() == "uuufff"
    pager.free(seq_id, tokens, hashes, 10)
    assert pager.block_states() == "cccfff"
    pager.append(pager.add_sequence(pager.find_prefix([0, 1, 9], hashes)), 1)
    assert pager.block_states() == "ufffff", "the rest is written over"


def test_rates() -> None:
    history = History(990.0)
    before = CoreStats(steps=10, generated_tokens=100, computed_tokens=300, prompt_tokens=50, cached_tokens=20)
    after = CoreStats(
        steps=14, generated_tokens=130, computed_tokens=420, prompt_tokens=90, cached_tokens=50, running=3, waiting=2
    )
    after.blocks, after.blocks_free, after.blocks_cached, after.blocks_shared = 100, 60, 25, 4
    steps = [StepRecord(end, 0.01, 3, 20, 0) for end in (5.0, 6.0, 7.0)]
    history.add(before, steps[:1], now=1000.0, clock=5.5)
    (sample,) = history.since().samples
    assert (sample.seconds, sample.steps, sample.generated_per_second) == (10, 10, 10), "since it was loaded"
    history.add(after, steps, now=1002.0, clock=7.5)
    (sample,) = history.since(1000.0).samples
    assert (sample.steps, sample.generated_per_second, sample.computed_per_second) == (4, 15, 60)
    assert (sample.prompt_tokens, sample.hit_rate, sample.running, sample.waiting) == (40, 30 / 40, 3, 2)
    assert (sample.blocks_free, sample.blocks_cached, sample.blocks_used) == (35, 25, 40)
    assert [step.time for step in history.since().steps] == [999.5, 1000.5, 1001.5], "each once"
    assert [step.time for step in history.since(1000.0).steps] == [1000.5, 1001.5]
    assert history.since(history.since().now).samples == ()
    history.add(after, steps, now=1003.0, clock=8.5)
    assert history.since(1002.0).samples[0].hit_rate is None


@pytest.mark.parametrize("seconds", [200, 2_000, 20_000])
def test_old_samples_are_merged(seconds: int) -> None:
    history = History(1e9)
    for i in range(1, seconds + 1):
        stats = CoreStats(steps=i, generated_tokens=3 * i, prompt_tokens=4 * i, cached_tokens=i, waiting=i)
        history.add(stats, [StepRecord(float(i), 0.1, 1, 0, 0)], now=1e9 + i, clock=float(i))
    shown = history.since()
    assert len(shown.steps) == min(512, seconds) and len(shown.samples) <= 900
    assert (shown.begun, shown.now) == (1e9, 1e9 + seconds) and shown.samples[-1].time == shown.now
    ends = [0, *(round(sample.time - 1e9) for sample in shown.samples)]
    assert [sample.seconds for sample in shown.samples] == [b - a for a, b in pairwise(ends)], "none is missing"
    assert [sample.steps for sample in shown.samples] == [b - a for a, b in pairwise(ends)]
    assert all(
        (round(sample.generated_per_second, 9), sample.hit_rate, sample.waiting) == (3, 1 / 4, end)
        for sample, end in zip(shown.samples, ends[1:], strict=True)
    )
    assert all(sample.seconds == 1 for sample in shown.samples[-min(300, seconds) :])


def test_an_engine_that_runs(monkeypatch: Any) -> None:
    monkeypatch.setattr(history_module, "INTERVAL", 0.01)
    prompt, history = [1, *range(5, 25)], History(time.time())

    async def main() -> None:
        with mlxr.Engine(TINY, max_sequences=2, host="cpu", threads=1) as engine:
            step = engine.model.host.step

            def slow(batch: Any) -> Any:
                time.sleep(0.005)  # so that the answer is still being written when somebody looks
                return step(batch)

            monkeypatch.setattr(engine.model.host, "step", slow)
            watching = asyncio.create_task(watch(engine, history))
            await asyncio.sleep(0.05)
            seen = None
            async for _ in engine.generate(prompt, mlxr.Sampling(max_tokens=100, ignore_eos=True)):
                seen = seen or await asyncio.to_thread(arena_view, engine)
            assert seen is not None
            (sequence,) = seen.sequences
            assert sequence.prompt_tokens == len(prompt) <= sequence.tokens
            (group,) = seen.groups
            assert group.used == -(-sequence.tokens // seen.block_size)
            counts = engine.launch_counts()
            program = engine.model.artifact.plan.program("cpu")
            assert set(counts) <= {kernel.name for kernel in program.kernels}
            logits = next(kernel.name for kernel in program.kernels if kernel.label == "logits")
            assert counts[logits] == engine.stats().steps == len(engine.recent_steps())
            end = time.monotonic() + 10
            while not (view := history.since()).samples or sum(s.steps for s in view.samples) < engine.stats().steps:
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
            assert sum(step.decoding + step.prompt_tokens for step in view.steps) == engine.stats().computed_tokens
            assert round(sum(s.generated_per_second * s.seconds for s in view.samples)) == 100
        try:
            await asyncio.wait_for(watching, 10)
        except EngineError:
            raise AssertionError("it ends with the engine") from None

    asyncio.run(main())
