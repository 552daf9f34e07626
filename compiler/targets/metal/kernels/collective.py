"""Collectives: no kernels, but calls of the runtime, which exchanges rows with the other ranks."""

from mlxr.compiler.artifact.launch import ROWS_WANTED
from mlxr.compiler.artifact.library_call import CollectiveCall, LibraryPort
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.collectives import AllSum, Collective, GatherResult, Receive, Send
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns


@lowers(AllSum, Send, Receive, GatherResult)
def lower_collective(lowering: MetalLowering, op: Op, attrs: Collective) -> None:
    """Adds the call for an op."""
    kind, out = attrs.exchange, lowering.graph.value(op.out)
    bound = {port: lowering.graph.value(op.inputs[port]) for port in ("x", "after") if port in op.inputs}
    ports = tuple(LibraryPort(name=port, dtype=value.dtype, shape=value.shape) for port, value in bound.items())
    call = CollectiveCall(function=kind, label=kind, ports=ports, dtype=out.dtype, width=num_columns(out))
    when = ROWS_WANTED if kind == "gather" else None
    inputs = tuple(value.name for value in bound.values())
    lowering.pending.append(PendingLaunch(op.name, call, inputs, (op.out,), when=when, layer=op.layer))
