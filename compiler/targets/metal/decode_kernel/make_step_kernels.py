"""Makes the step kernels that the geometry asks for: their texts, and their entries in the plan."""

from collections.abc import Mapping
from dataclasses import replace

from mlxr.compiler.artifact.library_call import CollectiveCall
from mlxr.compiler.artifact.program import Program
from mlxr.compiler.artifact.step_kernel_entry import StepKernelEntry, StepsAsLaunches
from mlxr.compiler.schedule.geometry import StepKernelSizes
from mlxr.compiler.schedule.lowered import LoweringInput
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import (
    NotOneKernelError,
    make_step_program,
    step_classes,
)
from mlxr.compiler.targets.metal.decode_kernel.step_text import step_text
from mlxr.compiler.targets.metal.decode_kernel.sum_in_step import sum_entry, sum_text


def with_step_kernels(
    program: Program, sources: Mapping[str, str], inputs: LoweringInput, sizes: StepKernelSizes
) -> tuple[Program, dict[str, str]]:
    """The program with its step kernels, if the geometry asks for any, and their texts by file.

    Args:
        program: the program without them.
        sources: the Metal text of each kernel, by its name.
        inputs: the input of the lowering.
        sizes: the geometry of step kernels: which steps they cover, threads of a block, and so on.
    """
    if inputs.num_sharing > 1 and not sizes.threads:
        sizes = replace(sizes, threads=sizes.threads_with_sums)
    if not sizes.threads:
        return program, {}
    weights = {weight.name for weight in inputs.weights}
    in_place = {weight.name for weight in inputs.weights if weight.is_of_adapters}
    limits = inputs.limits["prefill"]
    most = min(sizes.sequences, limits["seqs"], limits["tokens"], limits["rows"])
    if inputs.spec.deterministic:
        because = "steps are deterministic, and one kernel could round otherwise than those of a prefill step"
        return program.model_copy(update={"steps_as_launches": (_as_launches(range(1, most + 1), because),)}), {}
    if inputs.has_stages:
        because = "ranks exchange rows between the launches of a step"
        return program.model_copy(update={"steps_as_launches": (_as_launches(range(1, most + 1), because),)}), {}
    kernels: list[StepKernelEntry] = []
    as_launches: list[StepsAsLaunches] = []
    texts: dict[str, str] = {}
    for counts in step_classes(program, most):
        first, last = counts[0], counts[-1]
        try:
            step = make_step_program(program, counts)
            kernel = step_text(step, {**sources, **_sums(program, counts, inputs)}, weights, sizes, in_place)
        except NotOneKernelError as error:
            as_launches.append(_as_launches(counts, str(error)))
            continue
        entry = StepKernelEntry(
            first_count=first,
            last_count=last,
            name=kernel.name,
            file=f"steps/{kernel.name}.cu",
            threads=sizes.threads,
            blocks=sizes.blocks,
            inputs=kernel.passed,
            weights=kernel.held,
            outputs=step.outputs,
            conditions=step.conditions,
            scratch_bytes=step.scratch_bytes,
            pool_bytes=kernel.pool_bytes,
        )
        kernels.append(entry)
        texts[entry.file] = kernel.text
    changes = {"step_kernels": tuple(kernels), "steps_as_launches": tuple(as_launches)}
    return program.model_copy(update=changes), texts


def _sums(program: Program, counts: range, inputs: LoweringInput) -> dict[str, str]:
    """The texts of sums over those that share the layers, by the names of their entries."""
    calls = [launch.body for launch in program.phase("decode").launches]
    sums = [call for call in calls if isinstance(call, CollectiveCall) and call.function == "all_sum"]
    return {sum_entry(call).name: sum_text(call, counts, inputs) for call in sums}


def _as_launches(counts: range, because: str) -> StepsAsLaunches:
    return StepsAsLaunches(first_count=counts[0], last_count=counts[-1], because=because)
