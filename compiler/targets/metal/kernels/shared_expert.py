"""A shared expert: of one token in the experts' launches, of several in launches of its own.

The experts' kernels multiply each token by itself, since tokens choose different experts. A shared expert's weights are
the same for all, so that several tokens are better multiplied by kernels that read them once.
"""

import dataclasses

from mlxr.compiler.artifact.launch import Condition
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.targets.metal.kernels.projection import lower_projection
from mlxr.compiler.targets.metal.lowering import MetalLowering

ALONE, TOGETHER = Condition(dim="tokens", maximum=1), Condition(dim="tokens", minimum=2)
"""When a step has one token, and when it has several."""


def takes_several(lowering: MetalLowering) -> bool:
    """Whether steps may have several tokens."""
    return lowering.limits["tokens"] > 1


def multiply_together(lowering: MetalLowering, op: Op, attrs: Projection, inputs: dict[str, str], out: str) -> None:
    """Adds the launches of a shared expert's product for steps of several tokens.

    Args:
        lowering: of the phase.
        op: the op of the experts that does the product as well.
        attrs: the product.
        inputs: its inputs by port.
        out: its result.
    """
    before = len(lowering.pending)
    lower_projection(lowering, dataclasses.replace(op, attrs=attrs, inputs=inputs, outputs={"out": out}), attrs)
    added, lowering.pending[before:] = lowering.pending[before:], []
    for launch in added:
        when = launch.when or TOGETHER
        if when.dim == "tokens" and when.maximum is not None and when.maximum < TOGETHER.minimum:
            continue
        least = max(when.minimum, TOGETHER.minimum)
        lowering.pending.append(dataclasses.replace(launch, when=when.model_copy(update={"minimum": least})))
