"""Decode attention whose threadgroups share a context, as where they read each other's memory: in two launches on sim.

The first launch leaves what each threadgroup sends to others behind the numbers of buffer `layer`, and the second one
gets it there.
"""

import ctypes
import re
from itertools import product
from typing import Any

import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact, KernelCall
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.hosts.cuda import recorded_memory
from mlxr.runtime.hosts.sim.kernel import SimBuffer, SimKernel
from mlxr_tests.attention_cases import Case
from mlxr_tests.few import few
from mlxr_tests.op_bench import mma_bench
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.tolerances import Mismatch

OP = "layers.1.attention.attended"
CASES = [
    Case(6, 2, 128, "bf16", "bf16", "block", "paged", 8, 40, "yarn-half-of-it", extras="everything"),
    Case(8, 2, 64, "f16", "f16", "layer", "paged", 16, None, "none", extras="sinks"),
    Case(8, 2, 64, "f16", "f16", "block", "paged", 16, None, "half", extras="element-gate"),
    Case(8, 1, 64, "bf16", "bf16", "layer", "paged", 16, None, "half"),
]
SHORT = [(CASES[0], 8), (CASES[1], 2), (CASES[2], 4)]
HALF = 1 << 20
"""Numbers that one launch may leave, after `layer`."""
ROOM = HALF // 4


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, pattern
    return int(found[1])


def in_two_launches(artifact: Artifact, together: int) -> Artifact:
    """The artifact with a kernel that gets what others of the launch before have sent."""
    entry = artifact.kernel_entry("attend_mma")
    text = artifact.kernel_text(entry.name)
    kv_heads = number(r"Grid: \((\d+) KV heads", text)
    counts = {name: number(rf"MLXR_THREADGROUP\(float\d, {name}, (\d+)\)", text) for name in ("sent", "sent_of")}

    def at(name: str, rank: str, half: int) -> str:
        width, part = (4, 0) if name == "sent" else (2, 1)
        place = f"((sequence * {kv_heads}u + kv_head) * {together}u + {rank}) * {width * counts[name]}u"
        begin = f"const_cast<device uint*>(layer) + {half * HALF + 1024 + part * ROOM}u"
        return f"((device float{width}*)({begin} + {place}))"

    of_all = "uint i = thread_index_in_threadgroup; i < {}u; i += {}u"
    copies = "".join(
        f" for ({of_all.format(count, entry.threads)}) {{ {name}[i] = {at(name, 'rank', 1)}[i]; }}"
        for name, count in counts.items()
    )
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    changes = {
        "MLXR_ARE_TOGETHER() ?": "true ?",
        "PAIR(place, rank, x) *(place)": f"PAIR(place, to, x) {at('sent_of', '(to)', 0)}[(place) - sent_of]",
        "VECTOR(place, rank, x) *(place)": f"VECTOR(place, to, x) {at('sent', '(to)', 0)}[(place) - sent]",
        f"MLXR_AWAIT_SENT() {barrier}": f"MLXR_AWAIT_SENT() {barrier}{copies} {barrier}",
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return Artifact({**artifact.files, entry.file: text})


@pytest.fixture
def launched_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = SimKernel.launch

    def twice(self: SimKernel, buffers: list[SimBuffer], *grid: tuple[int, int, int], seed: int = 0) -> None:
        places = [i for i, param in enumerate(self.params) if param.name == "layer"]
        if not self.name.startswith("attend_mma"):
            return launch(self, buffers, *grid, seed=seed)
        (place,) = places
        room, layer = np.full(2 * HALF, np.nan, np.float32), buffers[place]
        ctypes.memmove(room.ctypes.data, layer.address, layer.size_bytes)
        given = [*buffers[:place], SimBuffer.of(room, writable=True, name="layer"), *buffers[place + 1 :]]
        launch(self, given, *grid, seed=seed)
        room[HALF + 1024 :] = room[1024:HALF]
        return launch(self, given, *grid, seed=seed)

    monkeypatch.setattr(SimKernel, "launch", twice)


def attend(artifact: Artifact, *lengths: int) -> None:
    bench = mma_bench(artifact, "sim")
    for length in lengths:
        seq_ids = bench.sequences(length, 0)
        bench.run("decode", [OP], bench.batch([(s, 1) for s in seq_ids]))
        bench.clear(seq_ids)


def artifact_of(case: Case, together: int) -> Artifact:
    sizes = {"attend_mma": 1, "attend_together": together, "attend_together_simdgroups": 2}
    return compiled(case.spec, Geometry.of(partition=16, **sizes))


@pytest.mark.usefixtures("launched_twice")
@pytest.mark.parametrize(("case", "together"), few([*product(CASES, [8, 4, 2])], SHORT), ids=str)
def test_shares_are_merged(case: Case, together: int) -> None:
    """Some of no keys, of one turn of a simdgroup and of several."""
    artifact = in_two_launches(artifact_of(case, together), together)
    attend(artifact, *sorted({0, 1, 16, 17, 63, min(100, case.context - 1), case.context - 1}))


@pytest.mark.usefixtures("launched_twice")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const bool owner = rank == ranks - 1", "const bool owner = rank < 2u"),
        ("const float weight = exp2(most - largest)", "const float weight = 1.0f"),
        ("min(start + rank * length, last)", "min(start + rank * 16u, last)"),
        ("sent_of + (rank * 8u + g)", "sent_of + (rank * 8u)"),
    ],
)
@pytest.mark.long
def test_mistake_is_noticed(old: str, new: str) -> None:
    artifact = in_two_launches(artifact_of(CASES[-1], 2), 2)
    entry = artifact.kernel_entry("attend_mma")
    text = artifact.kernel_text(entry.name)
    assert old in text, "the mistake must be possible"
    with pytest.raises((Mismatch, KernelFault)):
        attend(Artifact({**artifact.files, entry.file: text.replace(old, new)}), 100)


@pytest.mark.parametrize(
    ("changes", "is_recorded"),
    [({}, True), ({"adapters": {"rank": 8, "slots": 2}}, False), ({"parallel": {"tensor": 2}}, False)],
    ids=["whole", "adapters", "rank"],
)
def test_contexts_are_shared_where_steps_may_be_recorded(changes: dict[str, Any], is_recorded: bool) -> None:
    """Elsewhere MLX launches the kernel, and contexts beyond `attend_whole` have partitions."""
    heads = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64}
    spec = small_spec(model__attention=heads, cache={"dtype": "bf16"}, activation_dtype="bf16", **changes)
    sizes = {"attend_mma": 1, "attend_together": 4, "attend_together_context": 32, "attend_whole": 24, "partition": 16}
    artifact = compiled(spec, Geometry.of(**sizes))
    plan = artifact.of_rank(1).plan if spec.parallel else artifact.plan
    assert recorded_memory.is_recorded(plan) == is_recorded
    launches = [la for la in plan.first.phase("decode").launches if isinstance(la.body, KernelCall)]
    attends = [la for la in launches if la.kernel.startswith("attend")]
    found = {(plan.first.kernel(la.kernel).cluster, str(la.when)) for la in attends}
    assert all(la.kernel_call.threadgroups[0].times % plan.first.kernel(la.kernel).cluster == 0 for la in attends)
    borders = (32, 33) if is_recorded else (24, 25)
    assert found == {(4 if is_recorded else 1, f"context <= {borders[0]}"), (1, f"context >= {borders[1]}")}
