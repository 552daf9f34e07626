"""A decode step as one program: the plan's launches, in order, in the right memory, with the barriers they need."""

from dataclasses import replace
from itertools import product

import pytest

from mlxr.compiler.artifact import Artifact, decode_dims
from mlxr.compiler.artifact.step_kernel_entry import SCRATCH
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import make_step_program, step_classes
from mlxr.compiler.targets.metal.decode_kernel.step_program import StepProgram
from mlxr.runtime.hosts.binding import grid_of
from mlxr_tests.family_specs import ALL_SPECS, SHORT_SPECS, family_spec
from mlxr_tests.few import few
from mlxr_tests.specs import compiled
from mlxr_tests.step_races import races


def masks_of(artifact: Artifact, program: StepProgram) -> set[int]:
    contexts = range(1, artifact.plan.arena.context + 1)
    return {program.mask(decode_dims(count, context)) for count in program.counts for context in contexts}


@pytest.mark.parametrize("attend_many", few([0, 2], [2]))
@pytest.mark.parametrize("name", few(ALL_SPECS, SHORT_SPECS))
def test_a_program_is_the_plans_launches_with_barriers_where_they_depend(name: str, attend_many: int) -> None:
    artifact = compiled(family_spec(name), Geometry.of(partition=16, attend_many=attend_many))
    plan, step = artifact.plan, artifact.plan.first.phase("decode")
    classes = step_classes(plan.first, plan.arena.max_sequences)
    assert [count for counts in classes for count in counts] == list(range(1, plan.arena.max_sequences + 1))
    for program in (make_step_program(plan.first, counts) for counts in classes):
        for count, context in product(program.counts, range(1, plan.arena.context + 1)):
            dims = decode_dims(count, context)
            expected = [(launch.kernel, grid_of(launch, dims)) for launch in step.launches if grid_of(launch, dims)]
            inside = program.running(program.mask(dims))
            assert [(launch.kernel.name, launch.threadgroups(dims)) for launch in inside] == expected
        assert not races(program, masks_of(artifact, program))


def test_no_barrier_can_be_left_out() -> None:
    artifact = compiled(family_spec("head-gate", model__num_layers=4), Geometry.of(partition=16))
    program = make_step_program(artifact.plan.first)
    masks = masks_of(artifact, program)
    waiting = [i for i, launch in enumerate(program.launches) if launch.waits]
    assert len(waiting) > 10 and len(waiting) < len(program.launches) - 1, "gates are made beside queries"
    for i in waiting:
        launches = [replace(launch, waits=launch.waits and j != i) for j, launch in enumerate(program.launches)]
        assert races(replace(program, launches=tuple(launches)), masks), f"launch {i} needs its barrier"


def test_a_buffer_in_the_wrong_place_is_noticed() -> None:
    artifact = compiled(family_spec("head-gate"), Geometry.of(partition=16))
    program = make_step_program(artifact.plan.first)
    free = next(i for i, launch in enumerate(program.launches) if i and not launch.waits)
    launch, before = program.launches[free], program.launches[free - 1]
    moved = next(place for place in before.operands if place.argument == SCRATCH)
    launches = list(program.launches)
    launches[free] = replace(launch, operands=(*launch.operands[:-1], replace(moved, size_bytes=4)))
    assert races(replace(program, launches=tuple(launches)), masks_of(artifact, program))
