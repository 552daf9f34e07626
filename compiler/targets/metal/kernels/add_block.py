"""What a block adds to x, by launches before the kernels that do not add it themselves."""

from dataclasses import replace

from mlxr.compiler.artifact.launch import ONE, Condition, Extent
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.ir.ops.product import ADDED_PORTS
from mlxr.compiler.schedule.geometry import MatrixTiles
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernels.norm import NormKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering


def after_block(op: Op) -> Op:
    """The product alone, of the sum of x and what a block adds to it; the op itself if that is nothing."""
    if not isinstance(op.attrs, Projection) or op.attrs.added is None:
        return op
    inputs = {port: name for port, name in op.inputs.items() if port not in ADDED_PORTS} | {"x": _sum(op)}
    return replace(op, attrs=replace(op.attrs, added_eps=None), inputs=inputs, outputs={"out": op.out})


def add_block(lowering: MetalLowering, op: Op, p: ProjectionFacts, when: Condition | None) -> None:
    """Adds the launches that add what a block adds to x: a norm, or those of two results and of their sum."""
    assert p.added is not None, "something is added"
    added = op.inputs["added"]
    if "second" in op.inputs:
        first = _norm(lowering, op, p, when, "own", {"x": added, "weight": op.inputs["own_norm"]})
        of_second = {"x": op.inputs["second"], "weight": op.inputs["second_norm"], "residual": first}
        added = _norm(lowering, op, p, when, "both", of_second)
    of_sum = {"x": added, "weight": op.inputs["added_norm"], "residual": op.inputs["x"], "out": _sum(op)}
    if "added_scale" in op.inputs:
        of_sum["scale"] = op.inputs["added_scale"]
    _norm(lowering, op, p, when, "sum", of_sum)


def _sum(op: Op) -> str:
    """The buffer of the sum."""
    return op.outputs.get("stream", f"{op.name}.sum")


def _norm(
    lowering: MetalLowering, op: Op, p: ProjectionFacts, when: Condition | None, name: str, buffers: dict[str, str]
) -> str:
    """Adds the launch of a norm, and its result if the graph has no value for it; returns the result's name."""
    assert p.added is not None, "something is added"
    x, types = (
        lowering.value(op, "x"),
        {port: lowering.tensor(name).dtype for port, name in buffers.items() if port != "out"},
    )
    out = buffers.setdefault("out", f"{op.name}.{name}")
    if out not in lowering.graph and all(buffer.name != out for buffer in lowering.scratch):
        lowering.scratch.append(Scratch(out, x.shape, x.dtype))
    kernel = NormKernel(
        "norm",
        width=p.layout.columns,
        groups=1,
        kind="rms",
        eps=p.added.eps,
        shared=False,
        weight=types["weight"],
        bias=None,
        residual="residual" in buffers,
        residual_scale=p.added.factor if name == "sum" else 1.0,
        activation=x.dtype,
        scale=types.get("scale"),
    )
    lowering.emit(op, kernel, (ONE, Extent(dim="tokens")), buffers, when=when, chosen=p.choice.sizes(MatrixTiles))
    return out
