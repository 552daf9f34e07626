"""Texts of step kernels of an artifact whose geometry need not ask for them."""

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.schedule.geometry import StepKernel
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import ONE_SEQUENCE, make_step_program
from mlxr.compiler.targets.metal.decode_kernel.step_text import StepText, step_text


def text_of(artifact: Artifact, sizes: StepKernel, counts: range = ONE_SEQUENCE) -> StepText:
    """The text for decode steps of some numbers of sequences.

    Raises:
        NotOneKernelError: there is none.
    """
    plan = artifact.plan
    sources = {kernel.name: artifact.kernel_text(kernel.name) for kernel in plan.first.kernels}
    layouts = {weight.name: weight.layout for weight in plan.weights}
    return step_text(make_step_program(plan.first, counts), sources, layouts, sizes)
