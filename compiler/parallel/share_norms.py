"""Rewrites norms over columns that ranks divide, so that ranks that each have some of them can compute them."""

from dataclasses import replace

from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.shared_norm import MeanSquares, NormOfPart


def share_norms(graph: OpGraph) -> OpGraph:
    """The source graph of a model, with the sums of squares that ranks exchange as ops of their own.

    1. norm(q), norm(k) of a layer, each over all heads -> mean_squares(q, k), norm_of_part(q), norm_of_part(k).
    2. norm(x) of the result of a Mamba-2 block, whose heads are divided -> mean_squares(x), norm_of_part(x).
    """
    replacements: dict[str, list[Op]] = {}
    values: list[Value] = []
    norms: dict[int | None, dict[str, Op]] = {}
    for op, norm in graph.ops_of(Norm):
        if "weight" not in op.inputs:
            continue  # of each head by itself, as the spec has seen to
        (axis, *_) = graph.value(op.inputs["weight"]).axes or (None,)
        if norm.groups == 1 and axis is not None:
            norms.setdefault(op.layer, {})[axis.of] = op
            if axis.of == "units":
                squares, means = _squares(graph, op, {"q": op.inputs["x"]})
                values.append(means)
                replacements[op.name] = [squares, _part(op, 0, means.name)]
    for pair in norms.values():
        if pair.keys() != {"heads", "kv_heads"}:
            continue  # the only KV head is normalised by itself
        q, k = pair["heads"], pair["kv_heads"]
        squares, means = _squares(graph, q, {"q": q.inputs["x"], "k": k.inputs["x"]})
        values.append(means)
        replacements[q.name] = [squares, _part(q, 0, means.name)]
        replacements[k.name] = [_part(k, 1, means.name)]
    return graph.rewrite(replacements, values)


def _squares(graph: OpGraph, norm: Op, inputs: dict[str, str]) -> tuple[Op, Value]:
    """The mean squares that a norm needs, and perhaps another one, and their value."""
    name = f"{norm.inputs['weight'].rpartition('.')[0]}.mean_squares"
    tensors = {port: graph.value(of).tensor for port, of in inputs.items()}
    widths = [width for tensor in tensors.values() if isinstance(width := tensor.shape[1], int)]
    q_width, k_width = (*widths, 0)[:2]
    squares = MeanSquares(q_width, k_width, counts_keys="k" in inputs)
    out = squares.infer(tensors)["out"]
    return Op(name, squares, inputs, {"out": name}, norm.layer), Value(name, "activation", out.shape, out.dtype)


def _part(op: Op, column: int, means: str) -> Op:
    norm = op.attrs_as(Norm)
    assert norm.kind == "rms", "the shares have no other norm of split columns"
    inputs = {"x": op.inputs["x"], "weight": op.inputs["weight"], "mean_squares": means}
    return replace(op, attrs=NormOfPart(column, norm.eps), inputs=inputs)
