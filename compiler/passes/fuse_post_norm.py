"""Fuses the norm of what a block adds to the residual stream into the product that reads the stream next."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.passes.base import Edits, PassResult, as_projection, sole_producer


@dataclass(frozen=True)
class FusePostNorm:
    """Fuses the norm after a block, and the sum with the residual stream, into the next product.

    1. norm(y, residual, scale) that projection(x) reads first -> projection(residual, added = y), which gives the sum
       as `stream` for the others that read it.
    2. Rule 1 where y = norm(b, residual = norm(a)), of equal kind -> projection(residual, added = a, second = b).

    Every threadgroup or thread of the product then makes the whole row for itself. That pays for the few rows of a
    decode step, since a norm needs a whole row, which no launch of the block's last product has.

    Does not fire when the norm is a layer norm, has no weight or no residual, or is of groups of columns; when its
    result is returned, or what reads it first is no projection, reads it on another port too, or takes another block.
    """

    name: str = "fuse_post_norm"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every norm with a residual."""
        edits = Edits(graph)
        for norm, attrs in graph.ops_of(Norm):
            readers = graph.consumers(norm.out)
            if not readers or norm.out in graph.outputs or not _is_plain(norm) or "residual" not in norm.inputs:
                continue
            first = readers[0]
            if not isinstance(first.attrs, Linear | Projection) or not edits.untouched(first):
                continue
            if [port for port, name in first.inputs.items() if name == norm.out] != ["x"] or (
                "rows" in first.inputs and len(readers) > 1
            ):
                continue
            edits.replace(norm)
            edits.replace(first, _with_block(first, norm, _added(edits, norm, attrs), gives=len(readers) > 1))
        return edits.result()


def _is_plain(norm: Op) -> bool:
    attrs = norm.attrs_as(Norm)
    return attrs.kind == "rms" and attrs.groups == 1 and "weight" in norm.inputs and "bias" not in norm.inputs


def _added(edits: Edits, norm: Op, attrs: Norm) -> dict[str, str]:
    """The ports of what a norm's x is: one result, or the sum of two, each after a norm of its own."""
    graph = edits.graph
    second = sole_producer(graph, norm.inputs["x"], Norm)
    own = sole_producer(graph, second.inputs["residual"], Norm) if second and "residual" in second.inputs else None
    if second is None or own is None or "residual" in own.inputs:
        return {"added": norm.inputs["x"]}
    pair = (own, second)
    alike = all(_is_plain(op) and "scale" not in op.inputs and op.attrs_as(Norm).eps == attrs.eps for op in pair)
    if not alike or second.attrs_as(Norm).residual_scale != 1 or not edits.untouched(*pair):
        return {"added": norm.inputs["x"]}
    edits.replace(own)
    edits.replace(second)
    ports = {"added": own.inputs["x"], "own_norm": own.inputs["weight"]}
    return ports | {"second": second.inputs["x"], "second_norm": second.inputs["weight"]}


def _with_block(product: Op, norm: Op, added: dict[str, str], *, gives: bool) -> Op:
    """The product, which adds the block's result to x first, and gives the sum if others read it."""
    product, attrs = as_projection(product), norm.attrs_as(Norm)
    inputs = product.inputs | added | {"x": norm.inputs["residual"], "added_norm": norm.inputs["weight"]}
    if "scale" in norm.inputs:
        inputs["added_scale"] = norm.inputs["scale"]
    return replace(
        product,
        attrs=replace(product.attrs_as(Projection), added_eps=attrs.eps, added_factor=attrs.residual_scale),
        inputs=inputs,
        outputs=product.outputs | ({"stream": norm.out} if gives else {}),
    )
