"""Makes the step kernels that the geometry asks for: their texts, and what the plan says of them."""

from collections.abc import Mapping

from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.step_kernel_entry import StepKernelEntry, StepsAsLaunches
from mlxr.compiler.schedule.geometry import StepKernel
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import (
    NotOneKernelError,
    make_step_program,
    step_classes,
)
from mlxr.compiler.targets.metal.decode_kernel.step_text import step_text


def with_step_kernels(plan: Plan, sources: Mapping[str, str], sizes: StepKernel) -> tuple[Plan, dict[str, str]]:
    """The plan with its step kernels, if the geometry asks for any, and their texts by file.

    Args:
        plan: the plan without them.
        sources: the Metal text of each kernel, by its name.
        sizes: which steps shall be one kernel, threads of a block and the like.
    """
    if not sizes.threads:
        return plan, {}
    layouts = {weight.name: weight.layout for weight in plan.weights}
    kernels: list[StepKernelEntry] = []
    as_launches: list[StepsAsLaunches] = []
    texts: dict[str, str] = {}
    for counts in step_classes(plan, min(sizes.sequences, plan.arena.max_sequences, plan.max_tokens, plan.max_rows)):
        first, last = counts[0], counts[-1]
        try:
            program = make_step_program(plan, counts)
            kernel = step_text(program, sources, layouts, sizes)
        except NotOneKernelError as error:
            as_launches.append(StepsAsLaunches(first_count=first, last_count=last, because=str(error)))
            continue
        entry = StepKernelEntry(
            first_count=first,
            last_count=last,
            name=kernel.name,
            file=f"steps/{kernel.name}.cu",
            threads=sizes.threads,
            blocks=sizes.blocks,
            inputs=program.inputs,
            outputs=program.outputs,
            conditions=program.conditions,
            scratch_bytes=program.scratch_bytes,
        )
        kernels.append(entry)
        texts[entry.file] = kernel.text
    return plan.model_copy(update={"step_kernels": tuple(kernels), "steps_as_launches": tuple(as_launches)}), texts
