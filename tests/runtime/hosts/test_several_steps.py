"""Several decode steps in one batch give what they give one by one, on host cuda as sim runs it."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest, DecodeRequests
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import compiled, floats, small_spec

STEPS = 6


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", ["one kernel", "launches", "recorded"])
def test_logits_and_launches_are_those_of_single_steps(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The sequences come to new blocks, and to the second partition, at different steps."""
    geometry = Geometry.of(partition=16, **({"step_threads": 512, "step_sequences": 3} if kind == "one kernel" else {}))
    artifact = compiled(small_spec(cache={"mode": "paged", "block_size": 4, "max_sequences": 3}), geometry)
    card = SimLauncher(artifact)
    use_card(monkeypatch, artifact, card)
    found = []
    for steps in (1, STEPS):
        if kind == "recorded" and steps == STEPS:
            card.record(monkeypatch)
        host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
        pager = Pager.from_geometry(artifact.plan.arena)
        ids, starts, logits = [pager.add_sequence() for _ in range(2)], [13, 6], list[np.ndarray]()
        prompts = [BatchRequest(i, [*range(3, 3 + n)], 0) for i, n in zip(ids, starts, strict=True)]
        host.read(host.step(Batch.build(prompts, pager, host.plan.query_tile)))
        host.launches.clear()
        pager.take_copies()
        for begin in range(0, 2 * STEPS, steps):
            requests = DecodeRequests(ids, [0, 0], [start + begin for start in starts])
            batch = Batch.build(requests, pager, host.plan.query_tile, steps=steps)
            pager.take_copies()
            run = host.decode(batch)
            logits += [floats(run(mx.array([step, 40 - step], mx.int32))) for step in range(begin, begin + steps)]
        found.append((logits, host.launches))
    for single, several in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_array_equal(several, single)
    assert found[0][1] == found[1][1]
