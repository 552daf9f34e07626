"""The step kernel on an NVIDIA GPU: what its plan's launches compute, at each step, and again and again."""

import os
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr_tests.adapters import AdaptedPair, random_adapter
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.host_pair import HostPair
from mlxr_tests.kernel_host import kernel_host
from mlxr_tests.schedules import one_sequence, tokens
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.tolerances import check_logits

pytestmark = pytest.mark.skipif(not has_cuda(), reason="no NVIDIA GPU")

STEPS = int(os.environ.get("MLXR_TEST_STEPS", "200"))
"""Of each test, at most; fewer where a tool takes seconds for each."""
QUANTISED_CHANGES: dict[str, Any] = {
    "model__hidden_size": 256,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 512},
    "weights": {"default": "affine4_g64_bf16"},
    "activation_dtype": "bf16",
}
QUANTISED = small_spec(
    **QUANTISED_CHANGES, cache={"dtype": "bf16", "mode": "paged", "block_size": 4, "max_sequences": 1}
)


SEQUENCES = 20
SEVERAL = {"attend_many": 16, "mma_min_rows": 2, "mma_max_rows": 32}
"""Of projections and attention of several sequences, so that the kernels change with their number."""


def geometry(threads: int, blocks: int) -> Geometry:
    return Geometry.of(partition=16, step_threads=threads, step_blocks=blocks, step_sequences=SEQUENCES, **SEVERAL)


def steps_of(host: CudaHost) -> int:
    return sum(count for name, count in host.launches.items() if name.startswith("step_"))


@pytest.mark.parametrize("name", ALL_SPECS)
def test_families_give_the_references_logits(name: str) -> None:
    with kernel_host("cuda"):
        pair = HostPair(compiled(family_spec(name), geometry(512, 2)))
        one_sequence(pair)
        assert isinstance(pair.host, CudaHost) and not pair.host.notes
        before, count = steps_of(pair.host), min(STEPS, pair.plan.arena.context)
        assert before
        seq = pair.add()
        rng = np.random.default_rng(5)
        for _ in range(count):
            pair.step([(seq, tokens(rng, 1))])
    assert steps_of(pair.host) == before + count


@pytest.mark.parametrize(("threads", "blocks"), [(256, 1), (512, 2), (1024, 1), (640, 1)])
@pytest.mark.parametrize("quantised", [False, True])
def test_launches_and_one_kernel_agree_again_and_again(quantised: bool, threads: int, blocks: int) -> None:
    """Random tokens; in 200 steps over borders of blocks, the longest context that is not split, and partitions."""
    spec = QUANTISED if quantised else small_spec(cache={"mode": "paged", "block_size": 4, "max_sequences": 1})
    artifacts = [compiled(spec, one) for one in (geometry(threads, blocks), Geometry.of(partition=16, **SEVERAL))]
    weights = random_buffers(artifacts[0].plan)[0]
    hosts = [CudaHost(artifact, weights, Arena(artifact.plan.arena)) for artifact in artifacts]
    assert not hosts[0].notes
    rng = np.random.default_rng(7)
    pager, seq_id, steps = Pager.from_geometry(artifacts[0].plan.arena), -1, 0
    while steps < STEPS:
        if seq_id < 0 or pager.length(seq_id) == artifacts[0].plan.arena.context:
            if seq_id >= 0:
                pager.free(seq_id)
            seq_id = pager.add_sequence()
        request = BatchRequest(seq_id, tokens(rng, 1), pager.length(seq_id))
        batch = Batch.build([request], pager, artifacts[0].plan.query_tile)
        as_one, launched = (np.array(host.read(host.step(batch))) for host in hosts)
        check_logits(f"step {steps}", as_one, launched, "bf16" if quantised else "f32")
        steps += 1
    assert steps_of(hosts[0]) == STEPS and steps_of(hosts[1]) == 0
    inner = {name: count for name, count in hosts[0].launches.items() if not name.startswith("step_")}
    assert inner == dict(hosts[1].launches)


def test_adapters_that_come_between_steps() -> None:
    with kernel_host("cuda"):
        cache = {"mode": "paged", "block_size": 4, "max_sequences": 3}
        pair = AdaptedPair(compiled(small_spec(cache=cache, adapters={"rank": 8, "slots": 2}), geometry(512, 2)))
    assert isinstance(pair.host, CudaHost) and not pair.host.notes
    sequences = [pair.add_using(*use) for use in ((0, 0.5), (1, 1.0), (-1, 0.0))]
    for seed in range(4):
        pair.put(seed % 2, random_adapter(pair.artifact.spec, seed))
        for token in range(4):
            pair.step([(seq, [token + seq]) for seq in sequences])
    assert steps_of(pair.host) == 16


def test_steps_of_two_models_take_turns() -> None:
    """Two kernels that wait for all their blocks, queued at once, must not hold what the other one waits for."""
    artifact = compiled(small_spec(cache={"mode": "paged", "block_size": 4, "max_sequences": 1}), geometry(1024, 2))
    weights = random_buffers(artifact.plan)[0]
    hosts = [CudaHost(artifact, weights, Arena(artifact.plan.arena)) for _ in range(2)]
    pagers = [Pager.from_geometry(artifact.plan.arena) for _ in hosts]
    ids = [pager.add_sequence() for pager in pagers]
    logits: list[Any] = []
    for position in range(min(STEPS, artifact.plan.arena.context)):
        for host, pager, seq_id in zip(hosts, pagers, ids, strict=True):
            request = BatchRequest(seq_id, [position % 61], position)
            logits.append(host.step(Batch.build([request], pager, artifact.plan.query_tile)))
    mx.eval(logits)
    for one, other in zip(logits[::2], logits[1::2], strict=True):
        assert np.array_equal(np.array(one), np.array(other))


@pytest.mark.parametrize("quantised", [False, True])
def test_steps_of_several_sequences_are_one_kernel_too(quantised: bool) -> None:
    """Their number changes from step to step, and with it the kernels inside."""
    cache = {"mode": "paged", "block_size": 4, "max_sequences": SEQUENCES}
    spec = small_spec(**QUANTISED_CHANGES, cache={"dtype": "bf16", **cache}) if quantised else small_spec(cache=cache)
    artifacts = [compiled(spec, one) for one in (geometry(512, 1), Geometry.of(partition=16, **SEVERAL))]
    weights = random_buffers(artifacts[0].plan)[0]
    hosts = [CudaHost(artifact, weights, Arena(artifact.plan.arena)) for artifact in artifacts]
    assert not hosts[0].notes
    rng = np.random.default_rng(11)
    pager = Pager.from_geometry(artifacts[0].plan.arena)
    sequences = [pager.add_sequence() for _ in range(SEQUENCES)]
    counts = [*range(1, SEQUENCES + 1), *rng.integers(1, SEQUENCES + 1, min(STEPS, 100))]
    for step, count in enumerate(counts):
        chosen = rng.permutation(sequences)[:count].tolist()
        for seq_id in chosen:
            if pager.length(seq_id) == artifacts[0].plan.arena.context:
                pager.truncate(seq_id, 0)
        requests = [BatchRequest(seq_id, tokens(rng, 1), pager.length(seq_id)) for seq_id in chosen]
        batch = Batch.build(requests, pager, artifacts[0].plan.query_tile)
        as_one, launched = (np.array(host.read(host.step(batch))) for host in hosts)
        check_logits(f"step {step}, {count} sequences", as_one, launched, "bf16" if quantised else "f32")
    assert steps_of(hosts[0]) == len(counts) and not steps_of(hosts[1])
