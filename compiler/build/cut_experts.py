"""Cuts a source graph at the experts of some layers: the card gets one part, the CPU the other.

The card chooses the experts, gives the CPU what they read (`GiveRouted`), and takes their sum (`TakeSum`). The CPU's
graph is what lies in between, for one layer after the other, with the other ends of both.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.ops.experts import ExpertLinear, ExpertSum
from mlxr.compiler.ir.ops.handover import GiveRouted, GiveSum, TakeRouted, TakeSum
from mlxr.compiler.ir.tensor import Tensor


class CutGraph(NamedTuple):
    """The two parts of a graph."""

    card: OpGraph
    experts: OpGraph


def cut_experts(graph: OpGraph, layers: int) -> CutGraph:
    """Cuts the source graph of a model at the experts of its first layers.

    Args:
        graph: it.
        layers: how many of its layers keep their experts on the CPU; those without experts have nothing there.

    Raises:
        PlanError: none of these layers has experts.
    """
    cut = _Cut(graph)
    for total, _ in graph.ops_of(ExpertSum):
        if total.layer is not None and total.layer < layers:
            cut.add(total)
    if not cut.replaced:
        raise PlanError(f"experts_on_cpu is {layers}, but none of the first {layers} layers has experts")
    return cut.result()


@dataclass
class _Cut:
    """Collects both parts."""

    graph: OpGraph
    replaced: dict[str, list[Op]] = field(default_factory=dict)
    """What the card has in place of ops."""
    on_card: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    """The CPU's ops."""
    values: dict[str, Value] = field(default_factory=dict)
    last: str | None = None
    """What the CPU gave last."""

    def add(self, total: Op) -> None:
        """Cuts at the experts whose sum this is."""
        inside, first = self._inside(total)
        x, experts = first.inputs["x"], first.inputs["experts"]
        weights = first.inputs.get("weights", total.inputs.get("weights"))
        read = {"x": x, "experts": experts} | ({} if weights is None else {"weights": weights})
        self._on_card(total, inside, read)
        width, top_k = self.graph.value(x).shape[1], first.attrs_as(ExpertLinear).top_k
        assert isinstance(width, int), "only rows have symbolic dims"
        after = {} if self.last is None else {"after": self.last}
        take = TakeRouted(width, top_k, self.graph.value(x).dtype)
        self._emit(Op(f"{total.name}.taken", take, {"token_ids": "token_ids"} | after, read, total.layer))
        for op in (op for op in self.graph.ops if op.name in inside):
            self._emit(op)
        self.last = f"{total.name}.given"
        self._emit(Op(self.last, GiveSum(), {"x": total.out}, {"out": self.last}, total.layer))

    def _inside(self, total: Op) -> tuple[set[str], Op]:
        """The names of the ops that the CPU gets, and the first product of them."""
        inside, first = {total.name}, total
        last = self._producer(total, "x")
        inside.add(last.name)
        found = [self._producer(last, "x")]
        while found:
            op = found.pop()
            inside.add(op.name)
            if isinstance(op.attrs, ExpertLinear):
                first = op
            else:
                found += [producer for name in op.inputs.values() if (producer := self.graph.producer(name))]
        assert isinstance(first.attrs, ExpertLinear), "experts begin with a product"
        return inside, first

    def _producer(self, op: Op, port: str) -> Op:
        producer = self.graph.producer(op.inputs[port])
        assert producer is not None, "what experts read is computed"
        return producer

    def _on_card(self, total: Op, inside: Iterable[str], read: dict[str, str]) -> None:
        out, given = self.graph.value(total.out), f"{total.name}.given"
        give, width = GiveRouted(), out.shape[1]
        assert isinstance(width, int), "only rows have symbolic dims"
        tensor = give.infer({port: self.graph.value(name).tensor for port, name in read.items()})["out"]
        self.on_card.append(_activation(given, tensor))
        take = TakeSum(width, out.dtype)
        self.replaced |= {name: [] for name in inside}
        self.replaced[total.name] = [
            Op(given, give, read, {"out": given}, total.layer),
            Op(total.name, take, {"after": given}, {"out": total.out}, total.layer),
        ]

    def _emit(self, op: Op) -> None:
        """Adds an op to the CPU's graph, with the values that it binds."""
        for name in op.inputs.values():
            if name not in self.values:
                self.values[name] = self.graph.value(name)
        tensors = op.attrs.infer({port: self.values[name].tensor for port, name in op.inputs.items()})
        self.values |= {name: _activation(name, tensors[port]) for port, name in op.outputs.items()}
        self.ops.append(op)

    def result(self) -> CutGraph:
        """Both parts."""
        assert self.last is not None, "experts were cut"
        inputs = {value.name: value for value in self.graph.values if value.role == "input"}
        experts = OpGraph((inputs | self.values).values(), self.ops, [self.last])
        return CutGraph(self.graph.rewrite(self.replaced, self.on_card), experts)


def _activation(name: str, tensor: Tensor) -> Value:
    return Value(name, "activation", tensor.shape, tensor.dtype)
