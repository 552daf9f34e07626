"""The source graph of one rank, from the source graph of the whole model.

The rules of op kinds (`OpKind.divide`) say what the rank has of each value: the *whole* (as all ranks of the stage), a
part of its columns, or a *partial* sum (the sum over the ranks is the value). Ops that are linear work on partial sums;
before any other op an `all_sum` makes a partial value whole. So a layer has one sum after attention's output projection
and one after the MLP's last, and only one where both are added to the same residual.

A norm of queries or keys over all heads has one sum more, of the mean squares of both: two numbers for each token.

The first rank of a stage alone adds to a partial sum what is whole: biases and residuals. So these sums need no op of
their own, on any rank.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.ir.checks import RuleError
from mlxr.compiler.ir.division import WHOLE, Holding
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.ops.collectives import AllSum, GatherResult, Receive, Send
from mlxr.compiler.ir.ops.elementwise import Scale
from mlxr.compiler.ir.ops.experts import ExpertSum, Route
from mlxr.compiler.parallel.share_norms import share_norms
from mlxr.compiler.parallel.tensor_slice import TensorSlice, slice_of
from mlxr.compiler.spec.share import Share


@dataclass
class Shard:
    """Collects the values and ops of one rank's graph."""

    graph: OpGraph
    share: Share
    arena: ArenaGeometry
    values: dict[str, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    holdings: dict[str, Holding] = field(default_factory=dict)
    """What the rank has of each value."""
    slices: dict[str, TensorSlice] = field(default_factory=dict)
    """The rank's part of each tensor that it reads."""
    names: dict[str, str] = field(default_factory=dict)
    """The names of values that have another name on this rank, by their names in the whole model."""

    def run(self) -> OpGraph:
        """The graph of the rank.

        Raises:
            PlanError: an op or a tensor has no rule by which ranks divide it.
        """
        share = self.share
        own = {allocation.name: allocation for allocation in self.arena.allocations}
        for value in self.graph.values:
            if value.role in ("input", "constant"):
                self._declare(value, WHOLE)
            elif value.role == "store" and value.name in own:
                self._declare(replace(value, shape=own[value.name].shape), WHOLE)
        mine = [op for op in self.graph.ops if self._is_mine(op)]
        if not share.is_first:
            for number, name in enumerate(self._border(share.layers[0])):
                self._receive(number, name)
        for op in mine:
            self._add(op)
        if share.is_last:
            (result,) = self.graph.outputs
            return self._finished(self._result_of_last(result))
        after: dict[str, str] = {}
        for number, name in enumerate(self._border(share.layers[1])):
            after = {"after": self._send(number, self._whole(name), after)}
        return self._finished(self._gather(after))

    def _is_mine(self, op: Op) -> bool:
        if op.layer is not None:
            return self.share.layers[0] <= op.layer < self.share.layers[1]
        return self.share.is_first if self._is_before(op, 0) else self.share.is_last

    def _is_before(self, op: Op, layer: int) -> bool:
        """Whether an op is of the layers before `layer`, or precedes all layers."""
        if op.layer is not None:
            return op.layer < layer
        return self.graph.index(op.name) < self._first_in_layers

    @cached_property
    def _first_in_layers(self) -> int:
        return min(self.graph.index(op.name) for op in self.graph.ops if op.layer is not None)

    def _border(self, layer: int) -> list[str]:
        """The values that go from the layers before `layer` to that layer and those after it, in the graph's order.

        The residual stream, and of a model with vectors for layers these.
        """
        before = {op.name for op in self.graph.ops if self._is_before(op, layer)}
        return [
            name
            for op in self.graph.ops
            if op.name in before
            for name in op.outputs.values()
            if any(consumer.name not in before for consumer in self.graph.consumers(name))
        ]

    def _receive(self, number: int, name: str) -> None:
        value = self.graph.value(name)
        width = value.shape[1]
        assert isinstance(width, int), "only rows have symbolic dims"
        attrs = Receive(width, value.dtype)
        self._emit(Op(_numbered("received", number), attrs, {"token_ids": "token_ids"}, {"out": name}), WHOLE)

    def _send(self, number: int, name: str, after: dict[str, str]) -> str:
        """Sends one of several values; each follows the one before it, so that both stages have the same order."""
        value = replace(self.values[name], name=_numbered("sent", number))
        self._declare(value, WHOLE)
        self.ops.append(Op(value.name, Send(), {"x": name} | after, {"out": value.name}))
        return value.name

    def _result_of_last(self, result: str) -> str:
        """The result at rank 0, from what this rank of the last stage has."""
        own = self.names.get(result, result)
        if self.holdings[own].is_partial:
            own = self._whole(result)
        is_whole = self.holdings[own].is_whole
        if is_whole and self.share.split.pipeline == 1:
            return own
        of_others = is_whole and self.share.tensor_rank > 0  # but they take part in its sums
        return self._gather({"after": own} if of_others else {"x": own})

    def _gather(self, inputs: dict[str, str]) -> str:
        (name,) = self.graph.outputs
        value = self.graph.value(name)
        width = value.shape[1]
        assert isinstance(width, int), "only rows have symbolic dims"
        attrs = GatherResult(width)
        if name in self.values:  # this rank's own columns have the result's name
            self._rename(name, f"{name}.own")
            inputs = {port: f"{name}.own" if bound == name else bound for port, bound in inputs.items()}
        self._declare(value, WHOLE)
        self.ops.append(Op(f"{name}.gathered", attrs, {"rows": "logit_rows"} | inputs, {"out": name}))
        return name

    def _rename(self, name: str, to: str) -> None:
        self.values = {
            (to if key == name else key): replace(value, name=to) if key == name else value
            for key, value in self.values.items()
        }
        self.holdings[to] = self.holdings[name]
        self.ops = [
            replace(
                op,
                inputs={port: to if bound == name else bound for port, bound in op.inputs.items()},
                outputs={port: to if bound == name else bound for port, bound in op.outputs.items()},
            )
            for op in self.ops
        ]

    def _finished(self, result: str) -> OpGraph:
        bound = {name for op in self.ops for name in (*op.inputs.values(), *op.outputs.values())}
        values = [value for value in self.values.values() if value.name in bound or value.role == "input"]
        return OpGraph(values, self.ops, [result])

    def _add(self, op: Op) -> None:
        """Adds what an op of the model is here, by the rule of its kind."""
        tensors = {port: self.graph.value(name).tensor for port, name in op.inputs.items()}
        has = {port: self._has(op, port) for port in op.inputs}
        try:
            division = op.attrs.divide(tensors, has, self.share)
        except RuleError as error:
            raise PlanError(f"op {op.name!r} ({op.kind}) cannot be divided over ranks: {error}") from None
        ports = division.inputs or {port: port for port in op.inputs}
        attrs, inputs = division.attrs, {port: self._bind(op, of) for port, of in ports.items()}
        if attrs is None:
            (self.names[op.out],) = inputs.values()
        elif isinstance(attrs, Scale) and attrs != op.attrs and self._scale_experts(inputs["x"], attrs.factor):
            self.names[op.out] = inputs["x"]
        else:
            self._emit(replace(op, attrs=attrs, inputs=inputs), division.out)

    def _has(self, op: Op, port: str) -> Holding:
        """What the rank has of an input when the op runs: partial sums are summed before, unless the op takes them."""
        value = self.graph.value(op.inputs[port])
        if value.role == "weight":
            divided = self.share.is_divided and any(value.axes)
            return Holding(value.axes) if divided else WHOLE
        here = self.holdings[self.names.get(value.name, value.name)]
        return WHOLE if here.is_partial and port not in op.attrs.linear else here

    def _bind(self, op: Op, port: str) -> str:
        """The value here that the op reads at a port of the model's op."""
        name = op.inputs[port]
        if self.graph.value(name).role == "weight":
            return self._weight(name)
        return self.names.get(name, name) if port in op.attrs.linear else self._whole(name)

    def _scale_experts(self, name: str, factor: float) -> bool:
        """Scales the weights of experts, if this is their sum: no kernel scales that. False for other values."""
        makers = {made: index for index, op in enumerate(self.ops) for made in op.outputs.values()}
        total = self.ops[makers[name]]
        if not isinstance(total.attrs, ExpertSum):
            return False
        if "weights" not in total.inputs:
            raise PlanError("ranks cannot scale the sum of experts whose inputs are weighed: set residual_scale to 1")
        index = makers[total.inputs["weights"]]
        route = self.ops[index].attrs_as(Route)
        self.ops[index] = replace(self.ops[index], attrs=replace(route, scale=route.scale * factor))
        return True

    def _whole(self, name: str) -> str:
        """The value here of that name, summed over the ranks if it is partial."""
        here = self.names.get(name, name)
        if not self.holdings[here].is_partial:
            return here
        value = replace(self.values[here], name=f"{name}.all")
        layer = self.ops[-1].layer
        self._declare(value, WHOLE)
        self.ops.append(Op(f"{name}.all", AllSum(), {"x": here}, {"out": value.name}, layer))
        self.names[name] = value.name
        return value.name

    def _weight(self, name: str) -> str:
        """Declares the rank's part of a weight."""
        if name not in self.values:
            value = self.graph.value(name)
            part = self.slices[name] = slice_of(value.axes, self.share)
            cuts = [cut and (cut[1] - cut[0]) * part.tiles for cut in (part.rows, part.columns)]
            shape = tuple(cut or size for cut, size in zip(cuts, value.shape, strict=False))
            self._declare(replace(value, shape=shape), WHOLE)
        return name

    def _declare(self, value: Value, holding: Holding) -> None:
        self.values[value.name], self.holdings[value.name] = value, holding

    def _emit(self, op: Op, out: Holding) -> None:
        """Adds an op of this rank, and its results with the shapes that its rule infers."""
        tensors = {port: self.values[name].tensor for port, name in op.inputs.items()}
        for port, tensor in op.attrs.infer(tensors).items():
            if port in op.outputs:
                self._declare(Value(op.outputs[port], "activation", tensor.shape, tensor.dtype), out)
        layer = None if op.layer is None else op.layer - self.share.layers[0]
        self.ops.append(replace(op, layer=layer))


def _numbered(name: str, number: int) -> str:
    return f"{name}.{number}" if number else name


def shard(graph: OpGraph, share: Share, arena: ArenaGeometry) -> tuple[OpGraph, dict[str, TensorSlice]]:
    """The source graph of a rank, and its part of each tensor that it reads.

    Args:
        graph: the source graph of the whole model.
        share: the rank's part.
        arena: the rank's arena.

    Raises:
        PlanError: an op cannot be divided so; the message names it.
    """
    rank = Shard(share_norms(graph) if share.is_divided else graph, share, arena)
    return rank.run(), rank.slices
