"""Computes what follows a prompt's last attention only for the rows whose logits the batch asks for."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.rows import GatherRows
from mlxr.compiler.passes.base import Edits, PassResult

_PORTS = frozenset({"x", "weight", "norm", "norm_bias", "bias", "residual", "alpha_p", "alpha_n", "scale"})
_OF_TOKENS = ("x", "residual")
"""Those with a row for each token."""


@dataclass(frozen=True)
class LastRows:
    """Lets ops before the logits compute only the rows that the logits are computed of.

    1. logits(f(x), rows) -> logits(f(gather_rows(x, rows))), where f is all projections and norms before the logits
       that nobody else reads: in a block with attention and a plain MLP, those after the attention. x may be several.

    Does not fire for projections with a gate, with a layer's columns, or to which a block or an adapter adds, nor where
    f has no projection.
    """

    name: str = "last_rows"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to the logits."""
        edits = Edits(graph)
        for op, _ in graph.ops_of(Projection):
            if "rows" in op.inputs and op.out in graph.outputs:
                self._move(edits, op)
        return edits.result()

    def _move(self, edits: Edits, logits: Op) -> None:
        graph, rows, readers = edits.graph, logits.inputs["rows"], {logits.name}
        moved: list[Op] = []
        for op in reversed([*graph.ops]):
            if _is_rowwise(op, graph) and readers.issuperset(reader.name for reader in graph.consumers(op.out)):
                moved.insert(0, op)
                readers.add(op.name)
        if not any(isinstance(op.attrs, Linear | Projection) for op in moved):
            return
        made, chosen = {op.out for op in moved}, dict[str, str]()
        for op in moved:
            before = list[Op]()
            for port in (port for port in _OF_TOKENS if port in op.inputs):
                name = op.inputs[port]
                if name not in made | chosen.keys():
                    gather = f"{op.name}.{port}_rows"
                    chosen[name] = _declare(edits, name, gather, rows)
                    inputs, outputs = {"x": name, "rows": rows}, {"out": chosen[name]}
                    before.append(Op(gather, GatherRows(), inputs, outputs, op.layer))
            chosen[op.out] = _declare(edits, op.out, f"{op.out}.rows", rows)
            edits.replace(op, *before, replace(op, inputs=_renamed(op, chosen), outputs={"out": chosen[op.out]}))
        inputs = {port: name for port, name in _renamed(logits, chosen).items() if port != "rows"}
        edits.replace(logits, replace(logits, inputs=inputs))


def _is_rowwise(op: Op, graph: OpGraph) -> bool:
    if not isinstance(op.attrs, Linear | Projection | Norm) or not op.inputs.keys() <= _PORTS:
        return False
    return op.out not in graph.outputs and bool(graph.consumers(op.out))


def _declare(edits: Edits, name: str, chosen: str, rows: str) -> str:
    """Declares the chosen rows of a value under a name, which it returns."""
    value, (count,) = edits.graph.value(name), edits.graph.value(rows).shape
    return edits.declare(replace(value, name=chosen, role="activation", shape=(count, *value.shape[1:])))


def _renamed(op: Op, chosen: dict[str, str]) -> dict[str, str]:
    """Its inputs, with the chosen rows of those that have a row for each token."""
    return {port: chosen[name] if port in _OF_TOKENS else name for port, name in op.inputs.items()}
