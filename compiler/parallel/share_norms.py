"""Rewrites norms over all heads, so that ranks that each have some of the heads can compute them."""

from dataclasses import replace

from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.shared_norm import MeanSquares, NormOfPart


def share_norms(graph: OpGraph) -> OpGraph:
    """The source graph of a model, with the sums of squares that ranks exchange as ops of their own.

    1. norm(q), norm(k) of a layer, each over all heads -> mean_squares(q, k), norm_of_part(q), norm_of_part(k).
    """
    norms: dict[int | None, dict[str, Op]] = {}
    for op, norm in graph.ops_of(Norm):
        if "weight" not in op.inputs:
            continue  # of each head by itself, as the spec has seen to
        (axis, *_) = graph.value(op.inputs["weight"]).axes or (None,)
        if norm.groups == 1 and axis is not None:
            norms.setdefault(op.layer, {})[axis.of] = op
    replacements: dict[str, list[Op]] = {}
    values: list[Value] = []
    for pair in norms.values():
        if pair.keys() != {"heads", "kv_heads"}:
            continue  # the only KV head is normalised by itself
        q, k = pair["heads"], pair["kv_heads"]
        means = f"{q.inputs['weight'].rpartition('.')[0]}.mean_squares"
        inputs = {"q": q.inputs["x"], "k": k.inputs["x"]}
        (_, q_width), (_, k_width) = (graph.value(name).shape for name in inputs.values())
        assert isinstance(q_width, int) and isinstance(k_width, int), "only rows have symbolic dims"
        squares = MeanSquares(q_width, k_width, counts_keys=True)
        tensors = {port: graph.value(name).tensor for port, name in inputs.items()}
        out = squares.infer(tensors)["out"]
        values.append(Value(means, "activation", out.shape, out.dtype))
        replacements[q.name] = [Op(means, squares, inputs, {"out": means}, q.layer), _part(q, 0, means)]
        replacements[k.name] = [_part(k, 1, means)]
    return graph.rewrite(replacements, values)


def _part(op: Op, column: int, means: str) -> Op:
    norm = op.attrs_as(Norm)
    assert norm.kind == "rms", "the shares have no other norm of split columns"
    inputs = {"x": op.inputs["x"], "weight": op.inputs["weight"], "mean_squares": means}
    return replace(op, attrs=NormOfPart(column, norm.eps), inputs=inputs)
