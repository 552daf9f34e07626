"""Decode steps that are recorded once choose what launches choose, on host cuda as sim runs it."""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.bench import measure
from mlxr.bench.workload import Workload
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine import launch_lengths
from mlxr.runtime.engine.launch_step import copy_shared_blocks, more_steps
from mlxr.runtime.hosts.batch import Batch, BatchRequest, DecodeRequests
from mlxr.runtime.hosts.cuda import decode_steps, mlx_stream, recorded_batch, recorded_step, traces
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.cuda.recorded_batch import CHOOSE, FETCH, PLACE, RENEW
from mlxr.runtime.hosts.cuda.recorded_memory import graph_bytes, places_of_prompt, prompt_graph_bytes
from mlxr.runtime.hosts.sim.host import SimHost
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import compiled, floats, small_spec
from mlxr_tests.storyteller import TINY, tiny_spec

COUNTS = (6, 1, 1, 1, 4, 5)
"""Steps of each batch."""


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("as_one", [True, False])
def test_the_likeliest_tokens_are_those_of_the_logits(monkeypatch: pytest.MonkeyPatch, as_one: bool) -> None:
    """Sequences come to new blocks, and to the second partition, at different steps; the ring of tokens goes round."""
    monkeypatch.setattr(recorded_batch, "MOST_STEPS", 16)
    geometry = Geometry.of(partition=16, **({"step_threads": 512, "step_sequences": 3} if as_one else {}))
    artifact = compiled(small_spec(cache={"mode": "paged", "block_size": 4, "max_sequences": 3}), geometry)
    card = SimLauncher(artifact)
    use_card(monkeypatch, artifact, card)
    found = []
    for is_recorded in (False, True):
        if is_recorded:
            card.record(monkeypatch)
        host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
        pager = Pager.from_geometry(artifact.plan.arena)
        ids, starts = [pager.add_sequence() for _ in range(2)], [13, 6]
        prompts = [BatchRequest(i, [*range(3, 3 + n)], 0) for i, n in zip(ids, starts, strict=True)]
        host.read(host.step(Batch.build(prompts, pager, host.plan.query_tile)))
        host.launches.clear()
        pager.take_copies()
        tokens, chosen, done = mx.array([5, 7], mx.int32), list[np.ndarray](), None
        for turn, count in enumerate(COUNTS):
            before = starts
            starts = [start + count for start in starts]
            if done is not None and turn % 2:  # every other one goes on without a batch that is built
                done = host.go_on(done, more_steps(host, pager, ids, before, count, None))
                assert done is not None
                chosen.append(done.read().copy())
                continue
            tokens = tokens if done is None else done.tokens
            batch = Batch.build(DecodeRequests(ids, [0, 0], before), pager, host.plan.query_tile, tokens, count)
            pager.take_copies()
            done = host.likeliest_of_steps(batch)
            assert (done is not None) == is_recorded
            if done is not None:
                chosen.append(done.read().copy())
                continue
            run, of_steps = host.decode(batch), list[np.ndarray]()
            for _ in range(count):
                logits = floats(run(tokens))
                tokens = mx.array(logits.argmax(1).astype(np.int32))
                of_steps.append(np.stack([np.array(tokens), logits.max(1).view(np.int32)]))
            chosen.append(np.stack(of_steps, 1))
        found.append((np.concatenate(chosen, 1), host.launches))
        assert host.recorded_steps == (sum(COUNTS) if is_recorded else 0)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert card.recorded[CHOOSE] == sum(COUNTS) > recorded_batch.MOST_STEPS
    assert card.recorded[PLACE] == 1 and card.recorded[RENEW] == len(COUNTS) - 2, "the fourth batch is there"
    assert len({*found[0][0][0].flat}) > 3, "others than the first"
    kernels = {name: times for name, times in card.recorded.items() if name not in (PLACE, RENEW, FETCH)}
    assert as_one or all(card.overlapping[name] == times for name, times in kernels.items()), "launches overlap"
    assert not as_one or not card.overlapping.total(), "a step kernel begins when all before it has ended"


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
def test_a_batch_is_placed_without_a_wait_whatever_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card may be computing a prompt whose token somebody waits for."""
    artifact = compiled(small_spec(cache={"mode": "paged", "block_size": 4, "max_sequences": 3}), Geometry.of())
    card = SimLauncher(artifact)
    use_card(monkeypatch, artifact, card)
    card.record(monkeypatch)
    recorded_batch._count.cache_clear()
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    pager, start = Pager.from_geometry(artifact.plan.arena), 6
    sequence = pager.add_sequence()
    host.read(host.step(Batch.build([BatchRequest(sequence, [*range(3, 9)], 0)], pager, host.plan.query_tile)))
    for count in (1, 1, 5, 6):
        batch = Batch.build(DecodeRequests([sequence], [5], [start]), pager, host.plan.query_tile, None, count)
        pager.take_copies()
        assert host.likeliest_of_steps(batch) is not None, host.notes
        start += count
        monkeypatch.setattr(recorded_batch, "on_device", None)  # it waits for what it makes
    assert card.recorded[PLACE] == 4


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", few(["heads-by-layer", "short-conv"], ["short-conv"]))
def test_steps_go_on_with_groups_and_states_as_batches_that_are_built(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They come to new blocks, and windows pass old ones; with states each launch is of one step."""
    artifact, found = compiled(family_spec(name)), list[np.ndarray]()
    counts = [1] * 6 if artifact.plan.arena.num_slots else [2, 1, 3, 1, 2]
    for goes_on in (False, True):
        card = SimLauncher(artifact)
        use_card(monkeypatch, artifact, card)
        card.record(monkeypatch)
        host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
        pager = Pager.from_geometry(artifact.plan.arena)
        ids, starts, chosen, done = [pager.add_sequence() for _ in range(2)], [13, 6], list[np.ndarray](), None
        prompts = [BatchRequest(i, [*range(3, 3 + n)], 0) for i, n in zip(ids, starts, strict=True)]
        host.read(host.step(Batch.build(prompts, pager, host.plan.query_tile)))
        copy_shared_blocks(host, pager, None)
        for count in counts:
            if done is not None and goes_on:
                done = host.go_on(done, more_steps(host, pager, ids, starts, count, None))
            else:
                tokens = mx.array([5, 7], mx.int32) if done is None else done.tokens
                batch = Batch.build(DecodeRequests(ids, [0, 0], starts), pager, host.plan.query_tile, tokens, count)
                copy_shared_blocks(host, pager, None)
                done = host.likeliest_of_steps(batch)
            assert done is not None
            starts = [start + count for start in starts]
            chosen.append(done.read().copy())
        found.append(np.concatenate(chosen, 1))
        assert card.recorded[PLACE] == 1
    np.testing.assert_array_equal(*found)
    assert len({*found[0][0].flat}) > 3


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
def test_a_graph_that_cannot_be_launched_is_an_error_and_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(small_spec(cache={"mode": "paged", "block_size": 4}), Geometry.of(step_threads=512))
    card = SimLauncher(artifact)
    use_card(monkeypatch, artifact, card)
    card.record(monkeypatch)

    def refuse(*_: object, **__: object) -> None:
        raise HostError("cuda: the driver refuses")

    monkeypatch.setattr(recorded_step.RecordedStep, "start", refuse)
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    pager = Pager.from_geometry(artifact.plan.arena)
    batch = Batch.build(DecodeRequests([pager.add_sequence()], [5], [0]), pager, host.plan.query_tile)
    with pytest.raises(HostError, match="refuses"):
        host.likeliest_of_steps(batch)


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
def test_a_step_that_cannot_be_recorded_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once, not with each step."""
    artifact = compiled(small_spec(cache={"mode": "paged", "block_size": 4}))
    card, tries = SimLauncher(artifact), list[object]()
    use_card(monkeypatch, artifact, card)
    card.record(monkeypatch)

    def refuse(*given: object, **_: object) -> None:
        tries.append(given)
        raise HostError("cuda: the driver has no memory")

    monkeypatch.setattr(recorded_step, "LaunchGraph", refuse)
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    pager = Pager.from_geometry(artifact.plan.arena)
    seq_id = pager.add_sequence()
    batch = Batch.build(DecodeRequests([seq_id], [5], [0]), pager, host.plan.query_tile)
    assert host.likeliest_of_steps(batch) is None
    assert host.decode(batch), "it finds traces"
    assert host.likeliest_of_steps(batch) is None
    assert len(tries) == 1 and not host._decodes._recorded._batches, "its memory is free"
    (note,) = host.notes
    assert "1 sequence(s) cannot be recorded" in note and "no memory" in note


@pytest.mark.long
@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("as_one", [True, False])
def test_answers_are_those_of_sim(monkeypatch: pytest.MonkeyPatch, as_one: bool) -> None:
    """Requests join, leave, lose their blocks, and draw their tokens."""
    cache = {"mode": "paged", "max_sequences": 3, "block_size": 4, "num_blocks": 10}
    geometry = Geometry.of(step_threads=256, step_sequences=3) if as_one else None
    artifact = compile_spec(tiny_spec(model={"context": 32}, cache=cache), geometry, ("metal",)).artifact
    monkeypatch.setattr(launch_lengths, "_LAUNCH_SECONDS", 1000.0)
    prompts = [[1, 403, 27], [1, 5, 9, 22, 7, 8], [1, 300], [1, 44, 45, 46], [1, 77]]
    draws = mlxr.Sampling(temperature=0.8, seed=3)
    card, found = SimLauncher(artifact), []
    for host in ("sim", "cuda"):
        if host == "cuda":
            use_card(monkeypatch, artifact, card)
            card.record(monkeypatch)
        model = mlxr.load(artifact, TINY, host=host)
        answers = model.start(prompts, max_tokens=14, ignore_eos=True).finish()
        answers += model.start(prompts[:2], max_tokens=6, ignore_eos=True, sampling=draws).finish()
        answers += model.start(prompts[:2], max_tokens=9, ignore_eos=True).finish()
        assert model.core.stats().preemptions
        found.append([answer.token_ids for answer in answers])
    assert found[0] == found[1]
    assert card.recorded[CHOOSE] > card.recorded[PLACE] > 1 < card.recorded[RENEW]


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
def test_recorded_steps_that_are_used_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(
        small_spec(cache={"mode": "paged", "block_size": 4, "max_sequences": 3}),
        Geometry.of(step_threads=512, step_sequences=3),
    )
    card, made = SimLauncher(artifact), list[int]()
    use_card(monkeypatch, artifact, card)
    card.record(monkeypatch)
    monkeypatch.setattr(traces, "MOST", 2)
    monkeypatch.setattr(recorded_step.RecordedStep, "build", lambda step, **_: made.append(step._rows))
    monkeypatch.setattr(recorded_step.RecordedStep, "start", lambda *_, **__: None)
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    pager, starts = Pager.from_geometry(artifact.plan.arena), [0, 0, 0]
    ids = [pager.add_sequence() for _ in starts]
    for count in (1, 2, 1, 3, 1):
        requests = DecodeRequests(ids[:count], [5] * count, starts[:count])
        assert host.likeliest_of_steps(Batch.build(requests, pager, host.plan.query_tile)) is not None
        starts = [start + (i < count) for i, start in enumerate(starts)]
    assert made == [1, 2, 3]


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("as_one", [True, False])
def test_their_memory_is_planned(monkeypatch: pytest.MonkeyPatch, as_one: bool) -> None:
    """What steps of each number of sequences take, before the model is loaded."""
    geometry = Geometry.of(step_threads=512, step_sequences=3) if as_one else None
    artifact = compiled(small_spec(cache={"mode": "paged", "block_size": 4, "max_sequences": 3}), geometry)
    card = SimLauncher(artifact)
    use_card(monkeypatch, artifact, card)
    card.record(monkeypatch)
    monkeypatch.setattr(recorded_step.RecordedStep, "start", lambda *_, **__: None)
    graph, made = recorded_step.LaunchGraph, list[int]()
    monkeypatch.setattr(
        recorded_step, "LaunchGraph", lambda calls, *kept: (made.append(len(calls)), graph(calls, *kept))[1]
    )
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    pager, recorded = Pager.from_geometry(artifact.plan.arena), host._decodes._recorded
    ids = [pager.add_sequence() for _ in range(3)]
    assert not recorded.nbytes, "nothing is allocated before a step is recorded"
    for count in (1, 2, 3):
        requests = DecodeRequests(ids[:count], [5] * count, [0] * count)
        host.likeliest_of_steps(Batch.build(requests, pager, host.plan.query_tile))
        for seq_id in ids[:count]:
            pager.truncate(seq_id, 0)
    planned, graphs = CudaHost.recorded_bytes(artifact.plan), graph_bytes(artifact.plan)
    others = places_of_prompt(artifact.plan)[1] + graphs
    assert 0.7 * (planned - others) < recorded.nbytes <= planned - others
    of_steps = graphs - prompt_graph_bytes(artifact.plan)
    assert sum(made) * 2304 <= of_steps <= 4 * sum(made) * 2304, "two graphs of each step, before and after a border"
    alone = artifact.plan.first.memory.activation_bytes
    assert CudaHost.footprint(artifact, None).activation_bytes == alone + planned  # type: ignore[arg-type]  # not read
    assert SimHost.footprint(artifact, None).activation_bytes == alone  # type: ignore[arg-type]  # likewise


def test_many_threadgroups_look_for_the_likeliest_token_and_all_have_numbers_to_compare() -> None:
    for rows, width, at_least in ((1, 128256, 30), (4, 32000, 7), (64, 128256, 2), (200, 32000, 1), (1, 500, 1)):
        rows_of_blocks, parts, _ = recorded_batch.choosing_grid(rows, width)
        assert rows_of_blocks == rows and parts >= at_least
        assert parts == 1 or width // parts >= recorded_batch.CHOOSE_THREADS


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
def test_another_version_of_mlx_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(small_spec())
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    monkeypatch.setattr(decode_steps, "why_unknown", mlx_stream.why_unknown)
    monkeypatch.setattr(mlx_stream, "_library", lambda: None)
    (note,) = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena)).notes
    assert "not recorded" in note and mx.__version__ in note


@pytest.mark.long
@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("context", "batch"), [(1, 1), (16, 1), (16, 2), (104, 1)])
def test_bench_counts_no_token_for_free(monkeypatch: pytest.MonkeyPatch, context: int, batch: int) -> None:
    """All tokens of a launch come at once, so launches are timed whole; the clock counts steps here."""
    cache = {"mode": "paged", "block_size": 4, "max_sequences": 2}
    artifact = compiled(tiny_spec(model={"context": 128}, cache=cache), Geometry.of(step_threads=256))
    card = SimLauncher(artifact)
    use_card(monkeypatch, artifact, card)
    card.record(monkeypatch)
    monkeypatch.setattr(launch_lengths, "_LAUNCH_SECONDS", 1e9)
    with mlxr.load(artifact, TINY, host="cuda") as model:
        core = model.core
        clock = SimpleNamespace(
            perf_counter=lambda: float(core.stats().steps), thread_time=lambda: 0.25 * core.stats().steps
        )
        monkeypatch.setattr(measure, "time", clock)
        running = measure._Running(model, Workload(decode_tokens=20, context=context, batch=batch))
        for _ in range(3):  # at first nobody knows how long a step takes
            decoded = running.decode(20)
        assert decoded.steps == [1.0] * len(decoded.steps)
        least = min(20, 128 - context - model.host.most_steps)  # the context ends within the second launch
        assert least <= len(decoded.steps) < 20 + model.host.most_steps
        assert decoded.tokens == batch * len(decoded.steps)
        assert decoded.cpu_seconds == 0.25 * len(decoded.steps)
        generation = model.start([[5], [6]][:batch], max_tokens=20, ignore_eos=True)
        first = len([*generation.next_launch()])
        generation.finish()
        assert generation.first_tokens == first > batch, "`mlxr run --stats` counts none of them as decoded"
