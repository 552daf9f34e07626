"""The cuda host's own code, run on any machine, with the sim in MLX's place.

Kernels are not compiled for a GPU here (tests/kernels/test_cuda_texts.py does); `mx.compile` is off where the sim runs,
because the sim must see numbers.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.compiler.artifact import Artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.loading.resolve import chip_of
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.samples import Samples
from mlxr.runtime.engine.sampling import Row, Sampler, Sampling
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cuda import device, packed, prefill_steps, traces
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.cuda.packed import BoundInputs, DecodeInputs, Packed
from mlxr.runtime.hosts.cuda.parallel import peers
from mlxr.runtime.hosts.cuda.parallel.meet_peers import NoPeersError
from mlxr.runtime.hosts.cuda.step_kernel import StepKernel
from mlxr.runtime.hosts.likeliest import Grown
from mlxr.runtime.hosts.registry import hosts
from mlxr.runtime.hosts.select import resolve_host
from mlxr_tests.adapters import AdaptedPair, random_adapter
from mlxr_tests.fake_card import SimLauncher, Sums, use_card
from mlxr_tests.few import few
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.host_pair import HostPair
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.storyteller import Q8_0, TINY, tiny_spec


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
def test_the_cuda_host_gives_the_sim_hosts_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compile_spec(tiny_spec(cache={"max_sequences": 4})).artifact
    on_sim = mlxr.load(artifact, TINY, host="sim")
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    on_cuda = mlxr.load(artifact, TINY, host="auto")
    assert isinstance(on_cuda.host, CudaHost)
    prompts = [[1, 403, 27], [1, *range(300, 309)]]
    options: dict[str, Any] = {"max_tokens": 3, "sampling": mlxr.Sampling(temperature=0.5, seed=3, n=2)}
    got, expected = (model.start(prompts, **options).finish() for model in (on_cuda, on_sim))
    assert [a.token_ids for a in got] == [a.token_ids for a in expected]
    assert set(on_cuda.host.launches) == set(on_sim.host.launches)


@pytest.mark.usefixtures("eager")
def test_steps_upload_only_what_is_not_as_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(
        small_spec(cache={"mode": "paged", "block_size": 4, "max_sequences": 3}), Geometry.of(partition=16)
    )
    uploads: list[int] = []
    upload = Packed.upload
    monkeypatch.setattr(Packed, "upload", lambda packed: uploads.append(packed.numbers.size) or upload(packed))
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    pair = HostPair(artifact)
    pair.host = CudaHost(artifact, random_buffers(pair.plan)[0], pair.arena)
    a, b = pair.add(), pair.add()
    pair.step([(a, [3, 1, 4, 1, 5]), (b, [9])])  # lengths 5 and 1
    found = []
    for steps in range(6):
        uploads.clear()
        pair.step([(a, [steps]), (b, [steps + 7])])
        found.append(len(uploads))
    # Lengths before: 5 and 1, 6 and 2, 7 and 3, 8 and 4 (both take a new block), 9 and 5, 10 and 6.
    assert found == [1, 0, 0, 1, 0, 0]
    uploads.clear()
    pair.step([(a, [1, 2])])
    assert len(uploads) == 1, "a prefill uploads one array"
    uploads.clear()
    pair.step([(b, [1])])
    assert len(uploads) == 1, "another set of sequences"
    c = pair.fork(b)
    pair.step([(c, [4]), (b, [5])])
    pair.step([(b, [4]), (c, [5])])


def test_a_failed_step_uploads_all_again() -> None:
    inputs = DecodeInputs()
    tables = {"block_tables": np.array([[1, 2]], np.int32)}

    def run(positions: list[int], stops_before: int | None = None) -> BoundInputs:
        """Runs steps of one sequence; tells what was uploaded."""
        bound = inputs.bind({"positions": np.array(positions, np.int32)[:, None]}, dict(tables), len(positions))
        for step, position in enumerate(positions[:stops_before]):
            moved = inputs.moved(bound, step)
            assert bound.moving.unpack(moved)["positions"].tolist() == [position]
            inputs.advance(bound, step, moved + 1)
        assert bound.steady.arrays["block_tables"].tolist() == tables["block_tables"][0].tolist()
        return bound

    first = run([4])
    again = run([5, 6, 7])
    assert again.steady is first.steady and again.new == []
    jumps = run([8, 20, 21])
    assert jumps.steady is first.steady and jumps.new == [1]
    tables["block_tables"] = np.array([[1, 3]], np.int32)
    other = run([22, 23])
    assert other.steady is not first.steady and other.new == []
    run([24, 25, 26], stops_before=1)
    assert run([27]).new == [0], "the steps before it were not all launched"
    inputs.forget()
    last = run([28])
    assert last.new == [0] and last.steady is not other.steady


def test_a_look_at_tokens_leaves_those_of_the_next_step_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(small_spec())
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    one, several = mx.array([7]), mx.array([7, 8, 9])
    assert host.copy_to_read(one) is one
    (read,) = host.to_read_together([several, mx.array([0.5, 1.0, 2.0])])
    assert host.read(read).view(np.float32)[3:].tolist() == [0.5, 1.0, 2.0] and len(read) == 6
    assert len(host.to_read_together([one, mx.array([0.5])])) == 2, "single numbers are where the CPU sees them"
    assert host.copy_to_read(several) is not several and host.read(host.copy_to_read(several)).tolist() == [7, 8, 9]
    looked: list[mx.array] = []
    monkeypatch.setattr(host, "copy_to_read", lambda tokens: looked.append(tokens | 0) or looked[-1])
    read = host.read
    monkeypatch.setattr(host, "read", lambda result: looked.append(result) or read(result))
    draws = Samples(
        host, mx.array([[0.0, 1.0], [1.0, 0.0]]), [0, 1], [Row(Sampler(Sampling(), i), 0) for i in range(2)]
    )
    assert [sampled.token for sampled in draws.read()] == [1, 0]
    assert looked[1] is looked[0] and not any(one is draws.tokens for one in looked)


def with_and_without_traces(
    monkeypatch: pytest.MonkeyPatch, artifact: Artifact, batches: Callable[[Pager], Iterator[Batch]]
) -> list[bool]:
    """Runs batches with `mx.compile` and without, which must give the same numbers and count the same launches.

    Returns:
        Of each batch, whether Python launched anything.
    """
    launch, found = Sums(), []
    use_card(monkeypatch, artifact, launch)
    for compiles in (True, False):
        (mx.enable_compile if compiles else mx.disable_compile)()
        host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
        logits, launched = [], []
        for batch in batches(Pager.from_geometry(artifact.plan.arena)):
            launch.calls.clear()
            logits.append(host.read(host.step(batch)))
            launched.append(bool(launch.calls))
        found.append((logits, launched, host.launches))
    mx.enable_compile()
    assert all(
        np.isfinite(one).all() and np.array_equal(one, other) for one, other in zip(*(f[0] for f in found), strict=True)
    )
    assert found[0][2] == found[1][2]
    return found[0][1]


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
def test_a_step_is_traced_once_for_its_shapes_and_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    def batches(pager: Pager) -> Iterator[Batch]:
        seq_id = pager.add_sequence()
        for position in range(20):
            yield Batch.build([BatchRequest(seq_id, [5], position)], pager, 8)

    traced = with_and_without_traces(monkeypatch, compiled(small_spec(), Geometry.of(partition=16)), batches)
    assert traced == [position in (0, 16) for position in range(20)], "the second partition is another launch"


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
def test_prefill_is_traced_when_its_size_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, of which each takes what earlier ones made: six layers are more launches than one part has."""

    def batches(pager: Pager) -> Iterator[Batch]:
        for length in (5, 7, 5, 5, 7, 5):
            seq_id = pager.add_sequence()
            yield Batch.build([BatchRequest(seq_id, list(range(length)), 0)], pager, 8)
            pager.free(seq_id)

    traced = with_and_without_traces(monkeypatch, compiled(small_spec(model__num_layers=6)), batches)
    assert traced == [True, True, True, False, True, False]


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
def test_few_parts_of_a_prompt_wait_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all parts make at once would be the activations of all layers."""
    monkeypatch.setattr(prefill_steps, "_PART", 3)
    monkeypatch.setattr(prefill_steps, "_PARTS_AHEAD", 2)
    artifact = compiled(small_spec(model__num_layers=4))
    use_card(monkeypatch, artifact, Sums())
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    pager, order = Pager.from_geometry(artifact.plan.arena), list[str]()
    batch = Batch.build([BatchRequest(pager.add_sequence(), list(range(9)), 0)], pager, 8)
    for name in ("eval", "async_eval"):
        work = getattr(mx, name)
        monkeypatch.setattr(mx, name, lambda *a, name=name, work=work: order.append(name) or work(*a))
    logits = host.step(batch)
    parts = order.count("async_eval")
    assert parts >= 6 and order == ["async_eval"] * 3 + ["eval", "async_eval"] * (parts - 3) + ["eval"]
    assert np.isfinite(host.read(logits)).all()


def test_mlx_gets_its_settings_before_the_card_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("MLX_MAX_MB_PER_BUFFER", "MLX_MAX_OPS_PER_BUFFER", "MLX_ENABLE_TF32")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: False)
    assert not device.has_cuda() and not any(name in os.environ for name in names)
    monkeypatch.setenv("MLX_MAX_OPS_PER_BUFFER", "7")
    seen: list[list[str | None]] = []
    monkeypatch.setattr(mx, "device_info", lambda *_: seen.append([os.environ.get(name) for name in names]) or {})
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    assert not device.has_cuda() and seen == [[str(1 << 30), "7", "0"]], "what the user has set stays"


def test_the_chips_of_older_cards_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for major, name in ((9, "NVIDIA H200"), (8, "NVIDIA H200"), (7, "")):
        info = {"device_name": "NVIDIA H200", "compute_capability_major": major}
        monkeypatch.setattr(mx, "device_info", lambda *_, info=info: info)
        assert hosts()["cuda"].gpu_name() == name
        assert (chip_of(hosts()["cuda"]) is not None) == bool(name)
    assert chip_of(hosts()["cpu"]) is None


def test_mlx_keeps_no_more_than_a_quarter_of_the_gpus_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr(mx, "set_cache_limit", limits.append)
    monkeypatch.setattr(mx, "device_info", lambda *_: {"total_memory": 4096})
    device.limit_cache()
    monkeypatch.setattr(mx, "device_info", lambda *_: {})
    device.limit_cache()
    assert limits == [1024]


ADAPTED: dict[str, Any] = {
    "adapters": {"rank": 8, "slots": 2},
    "cache": {"mode": "paged", "block_size": 4, "max_sequences": 3},
}


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("as_one", few([False, True], [True]))
def test_tokens_have_the_adapters_of_their_sequences(monkeypatch: pytest.MonkeyPatch, as_one: bool) -> None:
    """Of steps as launches and as one kernel; adapters come, and are replaced, between steps."""
    sizes = {"step_threads": 512, "step_sequences": 3} if as_one else {}
    artifact = compiled(small_spec(**ADAPTED), Geometry.of(partition=16, **sizes))
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    pair = AdaptedPair(artifact)
    pair.host = CudaHost(artifact, random_buffers(pair.plan)[0], pair.arena)
    a, b, none = pair.add_using(0, 0.5), pair.add_using(1), pair.add_using(-1)
    for round_number in range(2):
        for slot in range(2):
            pair.put(slot, random_adapter(artifact.spec, 2 * round_number + slot))
        pair.step([(a, [3, 1, 4, 1, 5]), (none, [9, 2]), (b, [9])])
        for token in range(3):
            pair.step([(a, [token]), (b, [token + 7]), (none, [token + 9])])
        pair.step([(none, [1])])
        pair.uses |= {a: (1, -1.0), b: (-1, 0.0)}  # the same sequences, whose tables stay
    names = [name for name in pair.host.launches if name.startswith("step_")]
    assert sum(pair.host.launches[name] for name in names) == (8 if as_one else 0) and not pair.host.notes
    labels = {kernel.label for kernel in artifact.plan.first.kernels if kernel.name in pair.host.launches}
    assert {"qkv_low", "qkv_adapted", "gate_up_adapted", "down_adapted"} <= labels


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
def test_traced_steps_read_the_adapter_that_came_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, artifact = Sums(), compiled(small_spec(**ADAPTED))
    use_card(monkeypatch, artifact, launch)
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    pager, logits = Pager.from_geometry(artifact.plan.arena), []
    seq_id = pager.add_sequence()
    endless = {name: np.full_like(m, np.inf) for name, m in random_adapter(artifact.spec, 0).items()}
    for position in range(3):
        launch.calls.clear()
        if position == 2:
            host.write_adapter(0, endless)
        logits.append(host.read(host.step(Batch.build([BatchRequest(seq_id, [5], position)], pager, 8))))
        assert bool(launch.calls) == (position == 0)
    assert np.isfinite(logits[:2]).all() and not np.isfinite(logits[2]).any()


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
@pytest.mark.parametrize("models", [1, 2])
def test_a_turn_is_started_where_models_take_turns(monkeypatch: pytest.MonkeyPatch, models: int) -> None:
    """Each may have a thread, and MLX starts no thread's arrays in another."""
    artifact = compiled(small_spec(), Geometry.of(partition=16, step_threads=512))
    use_card(monkeypatch, artifact, Sums())
    monkeypatch.setattr(StepKernel, "models", WeakSet[object]())
    hosts = [CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena)) for _ in range(models)]
    pager, started = Pager.from_geometry(artifact.plan.arena), list[mx.array]()
    start = mx.async_eval
    monkeypatch.setattr(mx, "async_eval", lambda *arrays: [started.extend(arrays), start(*arrays)])
    hosts[0].step(Batch.build([BatchRequest(pager.add_sequence(), [5], 0)], pager, artifact.plan.query_tile))
    assert any(array is StepKernel.turn for array in started) == (models > 1)
    made = StepKernel.turn
    hosts[-1].recover()
    assert (StepKernel.turn is made) == (models > 1), "another model's kernels may run"
    hosts[0].recover()
    assert StepKernel.turn is None


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
def test_traces_that_are_used_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST", 3)

    def batches(pager: Pager) -> Iterator[Batch]:
        for length in (5, 5, 5, 6, 5, 7, 5, 8, 5, 6):
            seq_id = pager.add_sequence()
            yield Batch.build([BatchRequest(seq_id, list(range(length)), 0)], pager, 8)
            pager.free(seq_id)

    traced = with_and_without_traces(monkeypatch, compiled(small_spec()), batches)
    assert traced == [True, True, False, True, False, True, False, True, False, True]


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
def test_a_failure_within_prefill_is_the_hosts_and_later_steps_run(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(small_spec())
    use_card(monkeypatch, artifact, Sums())
    pager = Pager.from_geometry(artifact.plan.arena)
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    seq_id, before = pager.add_sequence(), host.arena.token

    def fail(*_: Any) -> None:
        raise RuntimeError("[malloc] out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(mx, "async_eval", fail)
        with pytest.raises(HostError, match=r"the step failed on the GPU: .* out of memory"):
            host.step(Batch.build([BatchRequest(seq_id, [1, 2, 3], 0)], pager, 8))
    assert host.arena.token is not before, "a new chain of accesses"
    pager.truncate(seq_id, 0)
    assert np.isfinite(host.read(host.step(Batch.build([BatchRequest(seq_id, [1, 2, 3], 0)], pager, 8)))).all()


@pytest.mark.skipif(device.has_cuda(), reason="there is a GPU here")
def test_without_a_card_the_cuda_host_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostError, match="CUDA build of MLX"):
        mlxr.load(mlxr.compile("storyteller"), Q8_0, host="cuda")
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    with pytest.raises(HostError, match="no NVIDIA GPU"):
        mlxr.load(mlxr.compile("storyteller"), Q8_0, host="cuda")
    assert resolve_host("auto").name in ("metal", "cpu")


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
def test_a_step_of_a_rank_is_traced_for_few_numbers_of_greatest_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt gathers all logits of its single row, so that each size is traced once."""
    spec = small_spec(parallel={"tensor": 2})
    artifact = compile_spec(spec, targets=["metal"]).artifact.of_rank(0)
    use_card(monkeypatch, artifact, Sums())

    def meet_no_peers(*_: Any) -> None:
        raise NoPeersError("there are none")

    monkeypatch.setattr(peers, "meet_peers", meet_no_peers)
    gathered: list[int] = []

    def gather(own: mx.array, rows: int, tops: int) -> mx.array:
        gathered.append(tops)
        return mx.broadcast_to(own[:, :1], (rows, spec.model.vocab_size))

    exchange: Any = SimpleNamespace(
        traceable=True,
        stays_on_gpu=False,
        all_sum_lazily=lambda x: x,
        all_sum=None,
        gather_result_lazily=gather,
        **{"size": 2, "index": 0, "is_line": False},
    )
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    host.use(exchange)
    pager = Pager.from_geometry(artifact.plan.arena)

    def launched(tokens: list[list[int]], numbers: list[int]) -> list[int]:
        """What was gathered wherever Python launched or traced it."""
        gathered.clear()
        for tops in numbers:
            ids = [pager.add_sequence() for _ in tokens]
            batch = Batch.build([BatchRequest(i, own, 0) for i, own in zip(ids, tokens, strict=True)], pager, 8)
            host.read(host.step(replace(batch, tops=tops)))
            for seq_id in ids:
                pager.free(seq_id)
        return list(gathered)

    assert host.gathers_tops
    assert launched([[5], [6]], [0, 1, 5, 40, 64, 65, 256, 1, 0, 3, 100]) == [0, 1, 64, 256]
    assert launched([[5]], [1, 0, 1]) == [1, 0]
    assert launched([[1, 2, 3]], [1, 0, 40, 1]) == [0, 0], "a size is traced when it comes again"
    exchange.stays_on_gpu = True
    assert launched([[5]], [1, 64]) == [], "as all of them"


def test_tables_that_an_interruption_kept_back_come_with_the_next_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, moving = DecodeInputs(), {"positions": np.full((1, 1), 3, np.int32)}
    steady = {"block_tables": np.array([2, 5, 0], np.int32)}  # two columns
    grown = Grown({}, {"block_tables": np.array([[5, 6]], np.int32)})

    def begin() -> BoundInputs:
        bound = inputs.bind(moving, steady, 1)
        inputs.advance(bound, 0, lambda: pytest.fail("nobody reads it"))
        return bound

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    bound = inputs.go_on(begin(), 1, Grown({}, {"block_tables": np.array([[5]], np.int32)}))
    inputs.advance(bound, 0, lambda: pytest.fail("nobody reads it"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(packed, "Packed", interrupt)
        inputs.go_on(bound, 1, grown)
    again = inputs.go_on(begin(), 1, grown)
    assert again.steady.packed.numbers[:3].tolist() == [2, 5, 6]
