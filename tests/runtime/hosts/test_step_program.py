"""A decode step as one program: the plan's launches, in order, in the right memory, with the barriers they need.

Needs no GPU: the program is looked at, and sim runs it one launch after the other.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import mlx.core as mx
import pytest

import mlxr
from mlxr.compiler.artifact import Artifact, decode_dims
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.hosts.binding import grid_of
from mlxr.runtime.hosts.cuda import step_kernel
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.host import AS_LAUNCHES, CudaHost
from mlxr.runtime.hosts.cuda.occupancy import Residency
from mlxr.runtime.hosts.cuda.step_program import (
    ALONE,
    SCRATCH,
    StepProgram,
    classes_of,
    step_program,
)
from mlxr.runtime.hosts.cuda.step_text import step_text
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.family_specs import ALL_SPECS, SHORT_SPECS, family_spec
from mlxr_tests.few import few
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.host_pair import HostPair
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.step_races import races
from mlxr_tests.storyteller import TINY, tiny_spec

AS_ONE = Geometry.of(partition=16, step_threads=512, step_sequences=3)
CACHE = {"mode": "paged", "block_size": 4, "max_sequences": 3}


def masks_of(artifact: Artifact, program: StepProgram) -> list[int]:
    contexts = range(1, artifact.plan.arena.context + 1)
    return [program.mask(decode_dims(count, context)) for count in program.counts for context in contexts]


@pytest.fixture
def eager() -> Iterator[None]:
    """`mx.compile` does nothing: sim must see numbers."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.mark.parametrize("attend_many", few([0, 2], [2]))
@pytest.mark.parametrize("name", few(ALL_SPECS, SHORT_SPECS))
def test_a_program_is_the_plans_launches_with_barriers_where_they_depend(name: str, attend_many: int) -> None:
    artifact = compiled(family_spec(name), Geometry.of(partition=16, attend_many=attend_many))
    plan, step = artifact.plan, artifact.plan.step("decode")
    classes = classes_of(plan, plan.arena.max_sequences)
    assert [count for counts in classes for count in counts] == list(range(1, plan.arena.max_sequences + 1))
    for program in (step_program(plan, counts) for counts in classes):
        for count, context in product(program.counts, range(1, plan.arena.context + 1)):
            dims = decode_dims(count, context)
            expected = [(one.kernel, grid_of(one, dims)) for one in step.launches if grid_of(one, dims)]
            found = [(one.kernel.name, one.threadgroups(dims)) for one in program.running(program.mask(dims))]
            assert found == expected
        assert not races(program, set(masks_of(artifact, program)))


def test_no_barrier_can_be_left_out() -> None:
    artifact = compiled(family_spec("experts-shared"), Geometry.of(partition=16))
    program = step_program(artifact.plan)
    masks = set(masks_of(artifact, program))
    waiting = [i for i, one in enumerate(program.entries) if one.waits]
    assert len(waiting) > 10 and len(waiting) < len(program.entries) - 1, "the shared expert runs beside the others"
    for i in waiting:
        entries = [replace(one, waits=one.waits and j != i) for j, one in enumerate(program.entries)]
        assert races(replace(program, entries=tuple(entries)), masks), f"launch {i} needs its barrier"


def test_a_buffer_in_the_wrong_place_is_noticed() -> None:
    artifact = compiled(family_spec("experts-shared"), Geometry.of(partition=16))
    program = step_program(artifact.plan)
    free = next(i for i, one in enumerate(program.entries) if i and not one.waits)
    one, before = program.entries[free], program.entries[free - 1]
    moved = next(place for place in before.operands if place.argument == SCRATCH)
    entries = list(program.entries)
    entries[free] = replace(one, operands=(*one.operands[:-1], replace(moved, size_bytes=4)))
    assert races(replace(program, entries=tuple(entries)), set(masks_of(artifact, program)))


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "spec", few(["small", "experts-shared-gate", "gemma-like", "gpt-oss-like", "olmo-like"], ["small", "gpt-oss-like"])
)
def test_a_program_gives_the_references_logits(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    artifact = compiled(small_spec(cache=CACHE) if spec == "small" else family_spec(spec), AS_ONE)
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    pair = HostPair(artifact)
    pair.host = CudaHost(artifact, random_buffers(pair.plan)[0], pair.arena)
    a, b = pair.add(), pair.add()
    pair.step([(a, [3, 1, 4, 1, 5]), (b, [9])])
    as_one = 0
    for token in range(16):  # over the borders of blocks and of the first partition
        pair.step([(a, [token])])
        as_one += 1
        if token % 8 == 0:
            pair.step([(b, [token]), (a, [token + 7])])
            as_one += 1
    names = [name for name in pair.host.launches if name.startswith("step_")]
    assert sum(pair.host.launches[name] for name in names) == as_one and not pair.host.notes
    assert len(names) == len({counts for counts in classes_of(pair.plan, 3) if {1, 2} & {*counts}})


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
def test_tokens_and_counts_are_those_of_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for geometry in (None, Geometry.of(step_threads=256)):
        artifact = compile_spec(tiny_spec(), geometry, ("metal",)).artifact
        use_card(monkeypatch, artifact, SimLauncher(artifact))
        model = mlxr.load(artifact, TINY, host="cuda")
        (answer,) = model.start([[1, 403, 27]], max_tokens=6, ignore_eos=True).finish()
        counts = {k: n for k, n in model.host.launches.items() if not k.startswith("step_")}
        found.append((answer.token_ids, int(model.arena.token[0]), counts))
        assert model.host.launches.total() - sum(counts.values()) == (0 if geometry is None else 6 - 1)
    assert found[0] == found[1]


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("geometry", "card", "why"),
    [
        (Geometry.of(step_threads=64), Residency(3, 2), "a block of the step has 64"),
        (Geometry.of(step_threads=512), Residency(3, 0), "no block of 512 threads"),
    ],
)
def test_what_does_not_fit_is_launches_and_says_so(
    monkeypatch: pytest.MonkeyPatch, geometry: Geometry, card: Residency, why: str
) -> None:
    artifact = compiled(small_spec(cache=CACHE), geometry)
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    monkeypatch.setattr(step_kernel, "residency", lambda *_: card)
    pair = HostPair(artifact)
    pair.host = CudaHost(artifact, random_buffers(pair.plan)[0], pair.arena)
    (note,) = pair.host.notes
    assert why in note
    a = pair.add()
    for token in range(4):
        pair.step([(a, [token])])
    assert pair.host.launches[AS_LAUNCHES] == 4


def test_an_old_card_is_told() -> None:
    built = step_kernel.build_steps(compiled(small_spec(), AS_ONE), "sm_75")
    assert not built.images and built.failures[0][0] == ALONE
    assert all("sm_75" in str(error) for _, error in built.failures)


def test_kernels_that_do_not_fit_a_block_are_refused() -> None:
    artifact = compiled(small_spec(), Geometry.of(partition=16))
    program = step_program(artifact.plan)
    with pytest.raises(HostError, match="threads"):
        step_text(artifact, program, 32, 1)
    same = step_text(artifact, program, 512, 1), step_text(artifact, program, 512, 1)
    assert same[0] == same[1] and same[0].name != step_text(artifact, program, 512, 2).name
