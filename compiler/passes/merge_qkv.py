"""Makes one projection of the three that feed an attention."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.passes.base import Edits, PassResult, sibling


@dataclass(frozen=True)
class MergeQkv:
    """Merges the q, k and v projections of a layer.

    1. linear(x, q), linear(x, k), linear(x, v) that reach one attention and its cache write, perhaps through a norm, a
       rope and a temperature -> split(linear(x, [q; k; v])).

    Does not fire when they read different x or only some have a bias.
    """

    name: str = "merge_qkv"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every layer."""
        edits = Edits(graph)
        writes = {op.attrs["layer"]: op for op in graph.ops if op.kind == "cache_write"}
        for attention in [op for op in graph.ops if op.kind == "attention"]:
            write = writes.get(attention.attrs["layer"])
            if write is None:
                continue
            sources = [attention.inputs["q"], write.inputs["k"], write.inputs["v"]]
            linears = [op for name in sources if (op := _linear_behind(graph, name))]
            if len({op.name for op in linears}) == 3 and self._alike(linears):
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
        merged = Op(name, "linear", inputs, {"out": qkv}, linears[0].attrs)
        ports = dict(zip("qkv", outs, strict=True))
        split = Op(
            sibling(name, "split"),
            "split",
            {"x": qkv},
            {port: value.name for port, value in ports.items()},
            dict(zip("qkv", widths, strict=True)),
        )
        # All three read x alone, so the first one's place is after all inputs and before all users.
        for op in linears:
            edits.replace(op)
        first = min(linears, key=lambda op: graph.index(op.name))
        edits.replace(first, merged, split)


def _linear_behind(graph: OpGraph, name: str) -> Op | None:
    """The linear op that makes a value, looking through what the fused attention does to it after the projection.

    None if something else reads what lies between.
    """
    op = graph.producer(name) if graph.sole_consumer(name) else None
    for kind in ("temperature", "rope", "norm"):
        if op and op.kind == kind and graph.sole_consumer(op.inputs["x"]):
            op = graph.producer(op.inputs["x"])
    return op if op and op.kind == "linear" else None
