"""Rows of weights that blocks copy to their shared memory: whole weights, and places that are free when they come."""

import re
from dataclasses import dataclass
from itertools import pairwise

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.schedule.geometry import Geometry, StepKernelSizes
from mlxr.compiler.targets.metal.decode_kernel.near_rows import NearRows, near_rows
from mlxr.compiler.targets.metal.decode_kernel.step_program import StepLaunch, StepProgram
from mlxr.compiler.targets.metal.decode_kernel.step_text import step_text
from mlxr.runtime.hosts.cuda import nvrtc
from mlxr.runtime.hosts.cuda.build import with_prelude
from mlxr_tests.has_nvrtc import has_nvrtc
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.step_words import handed

BLOCKS = 8
K_BLOCKS = {
    "model__hidden_size": 256,
    "model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64},
    "model__mlp": {"intermediate_size": 512},
    "weights": {"default": "q4_k", "tensors": {"layers.0.mlp.down": "q6_k"}},
    "activation_dtype": "bf16",
    "cache": {"dtype": "bf16", "max_sequences": 1},
}


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compiled(small_spec(**K_BLOCKS), Geometry.of(partition=16, matvec_mma=0))


@dataclass(frozen=True)
class Slots:
    """The numbers of a function's `slot_of`."""

    first: int
    slot: int
    all: int
    at: int
    total: int

    def of(self, n: int, k: int, groups: int) -> int:
        from_end = self.first - k * self.slot if k < groups else self.all - (k - groups) * self.slot
        return self.at + (k * self.slot if n % 2 == 0 else self.total - from_end)


def near_of(artifact: Artifact, program: StepProgram) -> list[tuple[StepLaunch, NearRows]]:
    sources = {kernel.name: artifact.kernel_text(kernel.name) for kernel in artifact.plan.first.kernels}
    layouts = {weight.name: weight.layout for weight in artifact.plan.weights}
    launches = list(program.running(min(program.masks)))
    found = [near_rows(la, layouts, program, sources[la.kernel.name], 2, BLOCKS) for la in launches]
    return [(launch, near) for launch, near in zip(launches, found, strict=True) if near is not None]


def text_of(artifact: Artifact, program: StepProgram) -> str:
    sources = {kernel.name: artifact.kernel_text(kernel.name) for kernel in artifact.plan.first.kernels}
    layouts = {weight.name: weight.layout for weight in artifact.plan.weights}
    return step_text(program, sources, layouts, StepKernelSizes(512, words=1, near=BLOCKS)).text


def test_threadgroups_have_all_rows_of_each_projection(artifact: Artifact) -> None:
    program = handed(artifact)
    sizes = {weight.name: weight.layout.size_bytes for weight in artifact.plan.weights}
    near = near_of(artifact, program)
    assert {launch.kernel.label for launch, _ in near} >= {"qkv", "o", "gate_up", "down"}
    for launch, rows in near:
        covered: set[int] = set()
        for part in rows.parts:
            for group in range(part.threadgroups):
                first = group * part.each - part.first
                if 0 <= first < part.rows:
                    begin = part.offset_bytes + first * part.row_bytes
                    covered |= set(range(begin, begin + part.each * part.row_bytes))
                    assert part.bytes >= (begin + part.each * part.row_bytes + 15) // 16 * 16 - begin // 16 * 16
        assert covered == set(range(sizes[launch.operands[rows.parts[0].operand].argument])), launch.kernel.label


def test_rows_come_to_places_that_are_free(artifact: Artifact) -> None:
    """The next launch's first rows come while one computes; its own last ones when the launch before has ended."""
    text = text_of(artifact, handed(artifact))
    pattern = (
        r"from_end = k < groups \? (\d+)u - k \* (\d+)u : (\d+)u - \(k - groups\) \* \d+u;\n"
        r"  return (\d+)u \+ \(n % 2 == 0 \? k \* \d+u : (\d+)u - from_end\);"
    )
    slots = [Slots(*map(int, found)) for found in re.findall(pattern, text)]
    assert len(slots) >= 4 and max(s.total for s in slots) == min(s.total for s in slots)
    order = [*slots, slots[0], slots[1]]
    for n, (one, other) in enumerate(pairwise(order)):
        groups, others = (s.first // s.slot for s in (one, other))
        own = {one.of(n, k, groups) + b for k in range(one.all // one.slot) for b in (0, one.slot - 1)}
        next_ = {other.of(n + 1, k, others) + b for k in range(others) for b in (0, other.slot - 1)}
        assert max(own) < min(next_) or max(next_) < min(own), "both are there at once"
        assert all(one.at <= place < one.at + one.total for place in own | next_)


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC; pip install nvidia-cuda-nvrtc")
def test_the_text_compiles(artifact: Artifact) -> None:
    text = text_of(artifact, handed(artifact))
    flags = ("--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=compute_90", "-dlto")
    nvrtc.compile_cubin("near", with_prelude(text), flags)
    assert text.count("const Mlxr_near&") >= 4
