"""Texts of an artifact's step kernels, whether or not its geometry asks for any."""

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.schedule.geometry import StepKernelSizes
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import ONE_SEQUENCE, make_step_program
from mlxr.compiler.targets.metal.decode_kernel.step_text import StepText, step_text


def text_of(artifact: Artifact, sizes: StepKernelSizes, counts: range = ONE_SEQUENCE) -> StepText:
    """The text for decode steps of some numbers of sequences.

    Raises:
        NotOneKernelError: such a step cannot be one kernel.
    """
    plan = artifact.plan
    sources = {kernel.name: artifact.kernel_text(kernel.name) for kernel in plan.first.kernels}
    weights = {weight.name for weight in plan.weights}
    return step_text(make_step_program(plan.first, counts), sources, weights, sizes)
