"""Merges the three projections that feed an attention into one."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.attention import Split, SplitQk
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.passes.attention_walk import attention_sites, source_of
from mlxr.compiler.passes.base import Edits, PassResult, sibling


@dataclass(frozen=True)
class MergeQkv:
    """Merges the q, k and v projections of a layer.

    1. linear(x, q), linear(x, k), linear(x, v) that reach one attention and its cache write, perhaps through a norm, a
       rope and a temperature -> split(linear(x, [q; k; v])).
    2. The same with projections whose results are clamped -> split(projection(x, [q; k; v])).
    3. The same where values are made of the keys, of linear(x, q) and linear(x, k) -> split_qk(linear(x, [q; k])).

    Does not fire when they read different x or only some have a bias.
    """

    name: str = "merge_qkv"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every layer."""
        edits = Edits(graph)
        for site in attention_sites(graph):
            paths = [(site.q, 1), (site.k, 2)] if site.shares_source else [(site.q, 1), (site.k, 1), (site.v, 1)]
            linears = [op for path, n in paths if (op := source_of(graph, path, Linear, Projection, readers=n))]
            if len({op.name for op in linears}) == len(paths) and self._alike(linears):
                self._merge(edits, linears)
        return edits.result()

    def _alike(self, linears: list[Op]) -> bool:
        first = linears[0]
        return all(
            op.inputs["x"] == first.inputs["x"] and op.attrs == first.attrs and op.inputs.keys() == first.inputs.keys()
            for op in linears
        )

    def _merge(self, edits: Edits, linears: list[Op]) -> None:
        graph = edits.graph
        outs = [graph.value(op.out) for op in linears]
        weights = [op.inputs["weight"] for op in linears]
        inputs = {"x": linears[0].inputs["x"], "weight": edits.concat(sibling(weights[0], "qkv"), weights)}
        if "bias" in linears[0].inputs:
            biases = [op.inputs["bias"] for op in linears]
            inputs["bias"] = edits.concat(sibling(biases[0], "qkv_bias"), biases)
        widths = [value.shape[1] for value in outs if isinstance(value.shape[1], int)]
        name = sibling(outs[0].name, "qkv_projected")
        qkv = edits.declare(replace(outs[0], name=name, shape=(outs[0].shape[0], sum(widths))))
        merged = replace(linears[0], name=name, inputs=inputs, outputs={"out": qkv})
        split = Op(
            sibling(name, "split"),
            SplitQk(widths[0], widths[1], 0) if len(widths) == 2 else Split(*widths),
            {"x": qkv},
            {port: value.name for port, value in zip("qkv", outs, strict=False)},
            merged.layer,
        )
        # All read only x, so the first one's place is after all inputs and before all consumers.
        for op in linears:
            edits.replace(op)
        first = min(linears, key=lambda op: graph.index(op.name))
        edits.replace(first, merged, split)
