"""Handovers to the CPU, which has some layers' experts: no kernels, but calls of the runtime."""

from mlxr.compiler.artifact.library_call import HandoverCall, LibraryPort
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.handover import GiveRouted, Handover, TakeSum
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns


@lowers(GiveRouted, TakeSum)
def lower_handover(lowering: MetalLowering, op: Op, attrs: Handover) -> None:
    """Adds the call for an op."""
    names = ("x", "experts", "weights", "after", "residual")
    bound = {port: lowering.graph.value(op.inputs[port]) for port in names if port in op.inputs}
    ports = tuple(LibraryPort(name=port, dtype=value.dtype, shape=value.shape) for port, value in bound.items())
    rows = lowering.graph.value(op.out if isinstance(attrs, TakeSum) else op.inputs["x"])
    before = [launch.body for launch in lowering.pending if isinstance(launch.body, HandoverCall)]
    call = HandoverCall(
        function="take" if isinstance(attrs, TakeSum) else "give",
        label=op.kind,
        ports=ports,
        dtype=rows.dtype,
        width=num_columns(rows),
        place=0 if isinstance(attrs, TakeSum) else sum(call.function == "give" for call in before),
        residual_scale=attrs.residual_scale if isinstance(attrs, TakeSum) else 1.0,
    )
    inputs = tuple(value.name for value in bound.values())
    lowering.pending.append(PendingLaunch(op.name, call, inputs, (op.out,), layer=op.layer))
