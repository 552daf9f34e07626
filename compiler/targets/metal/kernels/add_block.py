"""What a block adds to x, by launches before the kernels that do not add it themselves."""

from dataclasses import replace

from mlxr.compiler.artifact.launch import ONE, Condition, Extent
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.ir.ops.product import ADDED_PORTS
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


def add_block(
    lowering: MetalLowering, op: Op, p: ProjectionFacts, when: Condition | None, normed: str | None = None
) -> None:
    """Adds the launches that add what a block adds to x: a norm, or those of two results and of their sum.

    Args:
        lowering: of the phase.
        op: the product that reads the sum.
        p: its facts.
        when: the steps that need the launches.
        normed: the buffer for the product's own norm of the sum; None: it normalises by itself.
    """
    assert p.added is not None, "something is added"
    added = op.inputs["added"]
    if "second" in op.inputs:
        first = _norm(lowering, op, p, when, "own", {"x": added, "weight": op.inputs["own_norm"]})
        of_second = {"x": op.inputs["second"], "weight": op.inputs["second_norm"], "residual": first}
        added = _norm(lowering, op, p, when, "both", of_second)
    of_sum = {"x": added, "weight": op.inputs["added_norm"], "residual": op.inputs["x"], "out": _sum(op)}
    if "added_scale" in op.inputs:
        of_sum["scale"] = op.inputs["added_scale"]
    if normed is not None:
        of_sum |= {"normed": normed} | ({"norm": op.inputs["norm"]} if "norm" in op.inputs else {})
        lowering.scratch.append(Scratch(normed, lowering.value(op, "x").shape, p.activation))
    _norm(lowering, op, p, when, "sum", of_sum)


def normalises_sum(p: ProjectionFacts) -> bool:
    """Whether the launch that adds what a block adds can also take the product's norm of the sum, which others read."""
    return p.added is not None and p.added.gives and p.norm is not None and p.norm.kind == "rms" and not p.norm.bias


def _sum(op: Op) -> str:
    """The buffer of the sum."""
    return op.outputs.get("stream", f"{op.name}.sum")


def _norm(
    lowering: MetalLowering, op: Op, p: ProjectionFacts, when: Condition | None, name: str, buffers: dict[str, str]
) -> str:
    """Adds the launch of a norm, and its result if the graph has no value for it; returns the result's name."""
    assert p.added is not None, "something is added"
    x = lowering.value(op, "x")
    types = {port: lowering.tensor(buffers[port]).dtype for port in ("weight", "scale") if port in buffers}
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
        then=p.norm if "normed" in buffers else None,
    )
    lowering.emit(op, kernel, (ONE, Extent(dim="tokens")), buffers, when=when)  # no sizes: it is of several sites
    return out
