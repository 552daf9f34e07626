"""Rank 0's host over one that pipelines, with the sim in MLX's place: the engine sees a host that does not."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.warm_up import warm_up
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.cuda import device
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.parallel.connection import MessageKind
from mlxr.runtime.parallel.leader_host import LeaderHost
from mlxr.runtime.parallel.step_message import StepLimits, unpack_step
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import compiled, small_spec


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
def test_a_host_that_pipelines_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(small_spec(model__context=64, prefill_chunk=16), Geometry.of(chunk_padding=8))
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    plan, weights = artifact.plan, random_buffers(artifact.plan)[0]
    limits = StepLimits.of(plan.max_tokens, plan.max_rows, plan.query_tile, plan.arena)
    sent: list[MessageKind] = []

    def send(kind: MessageKind, data: bytes) -> None:
        sent.append(kind)
        assert kind is not MessageKind.STEP or unpack_step(data, limits, pytest.fail).num_tokens

    leader: Any = SimpleNamespace(ranks=(), send=send)

    def run(host: Host, pager: Pager) -> np.ndarray:
        """A prompt in two chunks, the first of them without logits, and a token."""
        seq_id = pager.add_sequence()
        launch_step(host, pager, [BatchRequest(seq_id, list(range(1, 17)), 0, "none")])
        rows = [host.read(launch_step(host, pager, [BatchRequest(seq_id, [3, 4, 5], 16)]))]
        rows.append(host.read(launch_step(host, pager, [BatchRequest(seq_id, [6], 19)])))
        pager.free(seq_id)
        return np.concatenate(rows)

    own = CudaHost(artifact, weights, Arena(plan.arena))
    alone = run(own, Pager.from_geometry(plan.arena))
    host = LeaderHost(CudaHost(artifact, weights, Arena(plan.arena)), leader, [])
    pager = Pager.from_geometry(plan.arena)
    assert not host.pipelines and host.builds_late, "nobody would get the ids: it is no rank"
    warm_up(host, pager)
    assert MessageKind.STEP in sent and not pager.num_sequences, "the others run these steps too"
    np.testing.assert_array_equal(run(host, pager), alone)
