"""Prompts whose last products have only the rows that give logits, on each target."""

import numpy as np
import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr.runtime.hosts.sim.host import SimHost
from mlxr_tests.arenas import nan_arena
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.memory_weights import read_memory
from mlxr_tests.native_weights import random_native
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.tolerances import LOGIT_ERROR

STEPS = [
    [(0, 37, "last")],
    [(1, 21, "none")],  # a chunk without logits
    [(1, 9, "last"), (2, 19, "last"), (0, 1, "last")],
    [(2, 5, "all"), (3, 12, "last")],
]
"""Steps of (sequence, tokens, rows of logits)."""


def run(host):
    pager, ends, found = Pager.from_geometry(host.arena.geometry), {}, []
    for parts in STEPS:
        requests = []
        for name, count, rows in parts:
            seq_id, start = ends.get(name) or (pager.add_sequence(), 0)
            tokens = [(7 * name + i) % 50 + 3 for i in range(start, start + count)]
            requests.append(BatchRequest(seq_id, tokens, start, rows))
            ends[name] = seq_id, start + count
        found.append(np.array(host.read(host.step(Batch.build(requests, pager, host.plan.query_tile)))))
    return found


@pytest.mark.parametrize("target", ["cpu", "metal"])
def test_logits_are_those_of_whole_prompts(target):
    spec = small_spec(cache={"max_sequences": 4, "block_size": 16}, model__context=128, prefill_chunk=64)
    artifact = compiled(spec, Geometry.of(chunk_last_rows=1), target)
    ops = [launch.op for launch in artifact.plan.first.phase("prefill").launches]
    assert "layers.1.attention.out.x_rows" in ops and "layers.0.attention.out.x_rows" not in ops
    arena = nan_arena(Arena(artifact.plan.arena))
    if target == "cpu":
        native, weights = random_native(artifact.plan)
        host = CpuHost(artifact, read_memory(native), arena, threads=2)
    else:
        buffers, weights = random_buffers(artifact.plan)
        host = SimHost(artifact, buffers, arena)
    wanted = run(ReferenceHost(artifact, weights, nan_arena(Arena(artifact.plan.arena))))
    for got, want in zip(run(host), wanted, strict=True):
        assert got.shape == want.shape
        errors = np.linalg.norm(got - want, axis=-1) / np.maximum(np.linalg.norm(want, axis=-1), 1e-9)
        assert (errors < (LOGIT_ERROR["fast"] if target == "cpu" else 1e-3)).all()
