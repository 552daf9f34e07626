"""Turns launches into C calls."""

from collections.abc import Mapping

from mlxr.compiler.artifact.launch import ROWS_WANTED, Condition
from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.schedule.program import PlacedPhase, PlacedProgram
from mlxr.compiler.targets.cpu.kernel_parts.kernel import OUTPUTS, CpuKernel
from mlxr.compiler.targets.cpu.kernels.collective import CpuCollective
from mlxr.compiler.targets.cpu.unit import Call, Calls


def calls_of(
    program: PlacedProgram, names: Mapping[CpuKernel, str], counters: Mapping[CpuKernel, int]
) -> tuple[Calls, ...]:
    """The calls of each phase.

    Args:
        program: the launches, whose buffers have places.
        names: the names of the kernels.
        counters: the numbers of their launch counters.

    Raises:
        PlanError: a launch has a condition that the program cannot test.
    """
    tensors = {tensor.name: index for index, tensor in enumerate(program.lowered.tensors)}
    return tuple(_calls(phase, names, counters, tensors) for phase in program.phases)


def _calls(
    phase: PlacedPhase, names: Mapping[CpuKernel, str], counters: Mapping[CpuKernel, int], tensors: Mapping[str, int]
) -> Calls:
    places = {buffer.name: buffer.offset_bytes for buffer in phase.buffers}
    (logits,) = phase.lowered.outputs
    calls = []
    for launch in phase.lowered.launches:
        kernel = launch.body
        assert isinstance(kernel, CpuKernel), "target cpu lowers to C functions"
        arguments = _arguments(launch, kernel, tensors, places, logits)
        is_sum = isinstance(kernel, CpuCollective) and kernel.kind == "all_sum"
        calls.append(Call(counters[kernel], names[kernel], arguments, launch.op, _needs_rows(launch.when), is_sum))
    return Calls(phase.lowered.name, tuple(calls))


def _arguments(
    launch: PendingLaunch, kernel: CpuKernel, tensors: Mapping[str, int], places: Mapping[str, int], logits: str
) -> tuple[str, ...]:
    """Arguments of a call, as C text, in the order of the function's parameters."""
    inputs, outputs = iter(launch.inputs), iter(launch.outputs)
    arguments = []
    for param in kernel.params:
        if param.kind == "layer":
            arguments.append(str(launch.place))
            continue
        name = next(outputs if param.kind in OUTPUTS else inputs)
        if param.kind in ("matrix", "vector"):
            cast = "" if param.kind == "matrix" else "(const float *)"
            arguments.append(f"{cast}t[{tensors[name]}]")
        elif name == logits:
            arguments.append("b->logits")
        else:
            pointer = "int32_t *" if param.kind in ("indices", "output_indices") else "float *"
            arguments.append(f"({pointer})(a + {places[name]})")
    return tuple(arguments)


def _needs_rows(when: Condition | None) -> bool:
    if when not in (None, ROWS_WANTED):
        raise PlanError(f"target cpu has no test for the condition {when}")
    return when is not None
