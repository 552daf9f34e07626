"""The launch that normalises x for kernels that multiply normalised numbers."""

from mlxr.compiler.artifact.launch import ONE, Condition
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernels.norm import NormKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, row_count


def normalise(lowering: MetalLowering, op: Op, p: ProjectionFacts, tile: int, when: Condition | None) -> str:
    """Adds the launch that normalises x, if x has a norm; returns the buffer that the projection reads.

    Projections that read the same norm of the same x share a launch, where they take the same numbers of rows.
    """
    x, kernel = lowering.tensor(op.inputs["x"]), norm_of(lowering, op, p)
    if kernel is None:
        return op.inputs["x"]
    names = {"x": op.inputs["x"], "weight": op.inputs.get("norm", ""), "bias": op.inputs.get("norm_bias", "")}
    read = tuple(names[port] for port, _ in kernel.inputs)
    for launch in reversed(lowering.pending):
        if (launch.body, launch.when, launch.inputs) == (kernel, when, read):
            return launch.outputs[0]
    names["out"] = normalised = normed_name(lowering, op, tile)
    lowering.scratch.append(Scratch(normalised, (x.shape[0], p.layout.columns), x.dtype))
    lowering.emit(op, kernel, (ONE, row_count(x)), names, when=when)  # no sizes: it is of several sites
    return normalised


def normed_name(lowering: MetalLowering, op: Op, tile: int) -> str:
    """A name for x after its norm. An op has several, as of rows of experts and of a shared expert."""
    name = f"{op.name}.normalised{tile}"
    made = sum(scratch.name == name or scratch.name.startswith(f"{name}.") for scratch in lowering.scratch)
    return f"{name}.{made + 1}" if made else name


def norm_of(lowering: MetalLowering, op: Op, p: ProjectionFacts) -> NormKernel | None:
    """The kernel that normalises x; None: x has no norm."""
    norm = p.norm
    if norm is None:
        return None
    return NormKernel(
        "normalise",
        width=p.layout.columns,
        groups=1,
        kind=norm.kind,
        eps=norm.eps,
        shared=False,
        weight=norm.weight,
        bias=norm.bias,
        residual=False,
        residual_scale=1.0,
        activation=lowering.tensor(op.inputs["x"]).dtype,
        columns=p.x_columns,
        early=True,
    )
