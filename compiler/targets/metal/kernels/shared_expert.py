"""A shared expert: of one token or few in the experts' launches, of many in launches of its own.

The experts' kernels multiply each token by itself, since tokens choose different experts. A shared expert's weights are
the same for all, so that several tokens share a read of them: in the first launch threadgroups of its own take several
tokens, and in the last one, where the sum is one of both, a threadgroup has several tokens.
"""

import dataclasses
from collections.abc import Callable

from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import ExpertKernel, SharedMatrix
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import facts_of
from mlxr.compiler.targets.metal.kernels.projection import lower_projection
from mlxr.compiler.targets.metal.kernels.projection_variants import of_several
from mlxr.compiler.targets.metal.lowering import MetalLowering

ALONE = Condition(dim="tokens", maximum=1)
"""When a step has one token."""
_FEW_TOKENS, _FEW_ROWS = 4, 2
"""Tokens that share a read of the weight in a launch of the experts, and rows of it for each simdgroup. The kernel for
one token has 68 to 88 registers on an H100, one with these 72 to 112, and one with the sizes of a launch of its own 167
to 232, which fewer threadgroups of the experts would run beside."""


def takes_several(lowering: MetalLowering) -> bool:
    """Whether steps may have several tokens."""
    return lowering.limits["tokens"] > 1


def tokens_from(lowering: MetalLowering, first: int, last: int | None = None) -> Condition:
    """The condition of steps of `first` to `last` tokens; None: to the most that a step has."""
    return Condition(dim="tokens", minimum=first, maximum=None if last == lowering.limits["tokens"] else last)


def multiply_several(
    lowering: MetalLowering,
    op: Op,
    product: Op,
    kernel: ExpertKernel,
    add_without: Callable[[int], None],
    buffers: dict[str, str],
    chosen: ChosenGeometry,
) -> None:
    """Adds the launches of an experts' kernel for steps of several tokens: of few with the shared expert, else apart.

    Args:
        lowering: of the phase.
        op: the op of the experts.
        product: the shared expert's product.
        kernel: the kernel for steps of one token, which does both.
        add_without: adds the launches of the experts alone, for steps of at least so many tokens.
        buffers: as for `MetalLowering.emit`.
        chosen: the geometry of the kernel.
    """
    assert kernel.shared is not None, "there is a shared expert"
    least, tiles = 2, in_tiles(lowering, product, kernel.shared)
    if tiles is not None:
        matrix, most = tiles
        few = dataclasses.replace(kernel, label=f"{kernel.label}_rows", shared=matrix)
        when = tokens_from(lowering, least, most)
        lowering.emit(op, few, grid_of(few), buffers | {"dims": "dims"}, when=when, chosen=chosen)
        least = most + 1
    if least <= lowering.limits["tokens"]:
        add_without(least)
        multiply_together(lowering, product, least)


def grid_of(kernel: ExpertKernel) -> tuple[Extent, Extent]:
    """The grid of an experts' kernel: its threadgroups for each token."""
    return Extent(times=kernel.threadgroups), Extent(dim="tokens")


def in_tiles(lowering: MetalLowering, product: Op, matrix: SharedMatrix) -> tuple[SharedMatrix, int] | None:
    """The shared expert's matrix for steps of several tokens, in a launch of the experts, and the most tokens of these.

    None where other kernels are better for two tokens already: those with matrix instructions, or MLX's matmul. Such
    steps have launches of its own.

    Args:
        lowering: of the phase.
        product: the shared expert's product, as a projection.
        matrix: its matrix for steps of one token.
    """
    several = of_several(facts_of(lowering, product))
    if several is None:
        return None
    two, most = several
    outs, tile = max(1, _FEW_ROWS // matrix.epilogue.halves), min(_FEW_TOKENS, two.tile)
    return dataclasses.replace(matrix, outs=outs, tile=tile, split=1, unroll=1), most


def as_projection(op: Op, attrs: Projection, inputs: dict[str, str], out: str) -> Op:
    """A shared expert's product as an op of its own.

    Args:
        op: the op of the experts that does the product as well.
        attrs: the product.
        inputs: its inputs by port.
        out: its result.
    """
    return dataclasses.replace(op, attrs=attrs, inputs=inputs, outputs={"out": out})


def multiply_together(lowering: MetalLowering, product: Op, least: int = 2) -> None:
    """Adds the launches of a shared expert's product for steps of at least so many tokens."""
    before = len(lowering.pending)
    lower_projection(lowering, product, product.attrs_as(Projection))
    added, lowering.pending[before:] = lowering.pending[before:], []
    for launch in added:
        when = launch.when or Condition(dim="tokens")
        if when.dim == "tokens" and when.maximum is not None and when.maximum < least:
            continue
        lowering.pending.append(
            dataclasses.replace(launch, when=when.model_copy(update={"minimum": max(when.minimum, least)}))
        )
