"""Prompts that are recorded once give what launches by MLX give, on host cuda as sim runs it."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact, BatchDim
from mlxr.compiler.errors import HostError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.samples import Samples
from mlxr.runtime.engine.sampling import Row, Sampler, Sampling
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.binding import batch_arrays
from mlxr.runtime.hosts.cuda import prefill_steps, recorded_prompts
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.cuda.matrix_library import WORKSPACE_BYTES
from mlxr.runtime.hosts.cuda.packed import Packed
from mlxr.runtime.hosts.cuda.recorded_batch import CHOOSE
from mlxr.runtime.hosts.cuda.recorded_calls import WORKSPACE
from mlxr.runtime.hosts.cuda.recorded_memory import places_of_prompt, prompt_numbers
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.few import few
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import UNPACKED, compiled, floats, small_spec

pytestmark = [
    pytest.mark.skipif(has_cuda(), reason="here the real one runs"),
    pytest.mark.usefixtures("eager"),
]
PRODUCTS = dict(chunk_padding=16, mlx_min_rows=18, mlx_quantised_min_rows=18)
SPEC = small_spec(**UNPACKED | {"weights": {"default": "q4_k"}}, model__context=100, model__num_layers=1)
Steps = list[list[tuple[int, int, bool]]]
STEPS: Steps = [
    [(0, 39, True)],
    [(1, 33, False)],  # a chunk without logits
    [(1, 20, True)],  # the next one, which sees it
    [(0, 1, True), (2, 30, True)],  # beside a sequence that decodes
    [(1, 1, True), (3, 29, True)],
]
"""Steps of (sequence, tokens, whether it has logits)."""


def run(monkeypatch: pytest.MonkeyPatch, artifact: Artifact, steps: Steps, *, is_recorded: bool) -> tuple[Any, ...]:
    """The logits of steps, the arena after them, the host and what the card has run."""
    with monkeypatch.context() as patch:
        card = SimLauncher(artifact)
        use_card(patch, artifact, card)
        if is_recorded:
            card.record(patch)
        host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
        pager, ids, ends, found = Pager.from_geometry(artifact.plan.arena), dict[int, int](), dict[int, int](), []
        for parts in steps:
            requests = []
            for name, count, has_logits in parts:
                if name not in ids:
                    ids[name] = pager.add_sequence()
                start = ends.get(name, 0)
                tokens = [(7 * name + i) % 50 + 3 for i in range(start, start + count)]
                requests.append(BatchRequest(ids[name], tokens, start, "last" if has_logits else "none"))
                ends[name] = start + count
            logits = host.step(Batch.build(requests, pager, host.plan.query_tile))
            pager.take_copies()
            found.append(floats(logits) if logits.size else np.zeros(logits.shape))
        mx.eval(host.arena.token)
        return found, [np.array(bits) for bits in host.arena.bits().values()], host, card


def agree(first: tuple[Any, ...], second: tuple[Any, ...], error: float = 2e-2) -> None:
    for a, b in zip(first[0], second[0], strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=error * max(1e-3, np.abs(a).max(initial=0)))


def test_what_is_only_prepared_is_recorded_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(SPEC, Geometry.of(**PRODUCTS))
    card = SimLauncher(artifact)
    use_card(monkeypatch, artifact, card)
    card.record(monkeypatch)
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    pager = Pager.from_geometry(artifact.plan.arena)
    batch = Batch.build([BatchRequest(pager.add_sequence(), [5] * 39, 0, "last")], pager, host.plan.query_tile)
    with host.only_preparing():
        logits = host.step(batch)
    assert logits.shape == (1, host.plan.vocab_size) and not mx.any(logits).item()
    assert len(card.uploaded) == 1 and not card.recorded and host.recorded_prompts == 0
    assert mx.any(host.step(batch)).item()
    assert len(card.uploaded) == 1 and card.recorded["product"] and host.recorded_prompts == 1


@pytest.mark.parametrize("keeps", few([True, False], [True]))
def test_logits_and_counts_are_those_of_launches(monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    monkeypatch.setenv("MLXR_UNPACKED_MIB", "100" if keeps else "0")
    monkeypatch.setattr(prefill_steps, "most_prompts", lambda _: 2)
    artifact = compiled(SPEC, Geometry.of(**PRODUCTS))
    launched, recorded = (run(monkeypatch, artifact, STEPS, is_recorded=is_recorded) for is_recorded in (False, True))
    agree(launched, recorded)
    host, card = recorded[2:]
    assert launched[2].launches == host.launches
    assert host.recorded_prompts == 4, "the first step of two sequences may be the only one"
    assert card.recorded["product"] > 3 and card.recorded["mlxr_norm_bf16"] and card.recorded["mlxr_finish_bf16"]
    assert launched[2].recorded_prompts == 0 and len(host._prefills._recent_recorded) == 2, "there is memory for two"
    total = places_of_prompt(artifact.plan)[1]
    assert 0 <= host._prefills.recorded.memory.nbytes - total < 4 and total < CudaHost.recorded_bytes(artifact.plan)


@pytest.mark.parametrize("keeps", few([True, False], [False]))
def test_decode_steps_with_products_are_recorded(monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    monkeypatch.setenv("MLXR_UNPACKED_MIB", "100" if keeps else "0")
    artifact = compiled(SPEC, Geometry.of(**PRODUCTS | dict(mlx_min_rows=2, mlx_quantised_min_rows=2)))
    steps: Steps = [[(0, 39, True)], [(1, 33, True)], *[[(0, 1, True), (1, 1, True)]] * 2, [(1, 1, True)]]
    launched, recorded = (run(monkeypatch, artifact, steps, is_recorded=is_recorded) for is_recorded in (False, True))
    agree(launched, recorded)
    assert recorded[2].recorded_steps == 3 and launched[2].launches == recorded[2].launches
    assert any(name.startswith("mlx.") for name in recorded[2].launches)
    assert not any("recorded" in note for note in recorded[2].notes)


@pytest.mark.parametrize("name", few(ALL_SPECS, ["layer-norm-bias"]))
def test_what_stands_beside_products(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Norms, biases, activations, gates, factors and bounds of all families."""
    artifact = compiled(family_spec(name), Geometry.of(chunk_padding=16, mlx_min_rows=8, partition=16))
    steps = [[(0, 20, True)]]
    launched, recorded = (run(monkeypatch, artifact, steps, is_recorded=is_recorded) for is_recorded in (False, True))
    assert recorded[2].recorded_prompts == 1 and launched[2].launches == recorded[2].launches
    agree(launched, recorded, 1e-4)


def test_what_cannot_be_recorded_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, tries = compiled(small_spec(), Geometry.of(chunk_padding=16)), list[object]()

    def refuse(*given: object) -> None:
        tries.append(given)
        raise HostError("cuda: the driver has no memory")

    with monkeypatch.context() as patch:
        patch.setattr(
            SimLauncher,
            "record",
            lambda card, patch, own=SimLauncher.record: (
                own(card, patch) or patch.setattr(recorded_prompts, "LaunchGraph", refuse)
            ),
        )
        found = run(patch, artifact, [[(0, 20, True)], [(1, 9, True)]], is_recorded=True)
    host = found[2]
    assert host.notes == ("prompts are launched by MLX and not recorded, slower: cuda: the driver has no memory",)
    assert len(tries) == 1 and host.recorded_prompts == 0 and all(np.isfinite(logits).all() for logits in found[0])


def test_another_thread_waits_for_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream is another one, and a graph is given there without the arena's token."""
    artifact = compiled(small_spec(cache={"mode": "paged", "max_sequences": 4}), Geometry.of(chunk_padding=16))
    threads, waited, evaluated = iter("aabba"), list[bool](), list[mx.array]()
    step, evaluate = CudaHost.step, mx.eval

    def stepped(host: CudaHost, batch: Batch) -> mx.array:
        name, token = next(threads), host.arena._token
        monkeypatch.setattr(recorded_prompts, "current_thread", lambda: name)
        evaluated.clear()
        logits = step(host, batch)
        waited.append(any(array is token for array in evaluated))
        return logits

    monkeypatch.setattr(CudaHost, "step", stepped)
    monkeypatch.setattr(mx, "eval", lambda *arrays: (evaluated.extend(arrays[:1]), evaluate(*arrays))[1])
    steps: Steps = [[(i % 4, 9, True)] for i in range(5)]
    host = run(monkeypatch, artifact, steps, is_recorded=True)[2]
    assert host.recorded_prompts == 5 and waited == [True, False, True, False, True]


def test_there_is_room_for_the_numbers_of_the_largest_step() -> None:
    """Of an encoder, each token gives a row."""
    cache = {"mode": "contiguous", "max_sequences": 1}
    spec = small_spec(output="hidden", cache=cache, model__context=2000, prefill_chunk=1900)
    plan = compiled(spec, Geometry.of(chunk_padding=16)).plan
    pager, read = Pager.from_geometry(plan.arena), plan.first.phase("prefill").launches
    request = BatchRequest(pager.add_sequence(), [3] * plan.max_tokens, 0, "all")
    names = {"token_ids", *(name for launch in read for name in launch.inputs)}
    arrays = batch_arrays(Batch.build([request], pager, plan.query_tile))
    packed = Packed.of({name: np.asarray(array) for name, array in arrays.items() if name in names})
    assert plan.max_tokens == plan.max_rows > 1000 and len(packed.numbers) <= prompt_numbers(plan)


def test_products_of_decode_steps_alone_have_room() -> None:
    plan = compiled(SPEC, Geometry.of(**PRODUCTS | dict(mlx_min_rows=2, mlx_quantised_min_rows=2))).plan
    phases = [
        phase if phase.name == "decode" else phase.model_copy(update={"launches": phase.launches[:0]})
        for phase in plan.program("metal").phases
    ]
    places, size = places_of_prompt(plan.with_program("metal", phases=tuple(phases)))
    assert size - places[WORKSPACE] >= WORKSPACE_BYTES


def test_steps_of_many_rows_of_logits_leave_the_others_recorded() -> None:
    """Their product chooses rows, which only MLX does. To try them would end the recording of all."""
    geometry = Geometry.of(chunk_padding=16, mlx_min_rows=8, partition=16)
    phase = compiled(family_spec("layer-norm-bias"), geometry).plan.program("metal").phase("prefill")

    def takes(rows: int) -> bool:
        dims: dict[BatchDim, int] = {"tokens": 40, "seqs": 1, "rows": rows, "tiles": 5, "context": 40}
        running = [launch for launch in phase.launches if launch.runs(dims, library=True)]
        return recorded_prompts.Launches.of(phase, running) is not None

    assert [takes(rows) for rows in (0, 1, 7, 8)] == [True, True, True, False]


def test_the_likeliest_token_is_chosen_behind_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose memory the next prompt uses, too; rows that ask for more are MLX's."""
    artifact = compiled(SPEC, Geometry.of(**PRODUCTS))
    card = SimLauncher(artifact)
    use_card(monkeypatch, artifact, card)
    card.record(monkeypatch)
    host, greedy = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena)), Sampler(Sampling())
    pager, found, logits = Pager.from_geometry(artifact.plan.arena), [], []

    def prompt(count: int) -> mx.array:
        requests = [BatchRequest(pager.add_sequence(), [*range(3, 3 + count)], 0, "last")]
        logits.append(host.step(Batch.build(requests, pager, host.plan.query_tile)))
        return logits[-1]

    for count in (39, 20):
        found.append(Samples(host, prompt(count), [0], [Row(greedy, 0)]))
    assert card.recorded[CHOOSE] == 2
    for row in (Row(Sampler(Sampling(logprobs=1)), 0), Row(greedy, 0, np.full(3, -1, np.int32))):
        found.append(Samples(host, prompt(39), [0], [row]))
    found.append(Samples(host, mx.array(logits[-1]), [0], [Row(greedy, 0)]))
    assert card.recorded[CHOOSE] == 2
    likeliest = [int(np.array(each).argmax()) for each in (*logits, logits[-1])]
    assert len({*likeliest}) == 2 and [samples.read()[0].token for samples in found] == likeliest
    assert [samples.tokens.item() for samples in found] == likeliest


@pytest.mark.parametrize("breaks", [False, True])
def test_what_is_wrong_behind_the_graph_is_told(monkeypatch: pytest.MonkeyPatch, breaks: bool) -> None:
    """A logit that is no number is the row's error; a step that failed is the host's."""
    artifact = compiled(SPEC, Geometry.of(**PRODUCTS))
    card = SimLauncher(artifact)
    use_card(monkeypatch, artifact, card)
    card.record(monkeypatch)
    weights = {
        name: mx.full(w.shape, mx.nan, w.dtype) if "norm" in name else w
        for name, w in random_buffers(artifact.plan)[0].items()
    }
    host = CudaHost(artifact, weights, Arena(artifact.plan.arena))
    pager = Pager.from_geometry(artifact.plan.arena)
    batch = Batch.build([BatchRequest(pager.add_sequence(), [5] * 39, 0, "last")], pager, host.plan.query_tile)
    samples = Samples(host, host.step(batch), [0], [Row(Sampler(Sampling()), 0)])

    def wait() -> None:
        raise HostError("cuda: the driver's cuEventSynchronize fails with error 719")

    if breaks:
        monkeypatch.setattr(host._prefills.recorded.choice._places[0].end, "wait", wait)
        with pytest.raises(HostError, match="719"):
            samples.read()
        assert not host._prefills.recorded.unread
        return
    (sampled,) = samples.read()
    assert isinstance(sampled.error, HostError) and "a NaN logit" in str(sampled.error)
