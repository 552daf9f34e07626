"""The source graph of one rank, from the source graph of the whole model.

A value of a rank is *whole* (all ranks of the stage have the same), *split* (each has columns of its own) or *partial*
(the sum over the ranks is the value). A product with a weight that is divided by rows gives split columns; a product of
split columns with a weight that is divided by columns gives partial sums. Ops that are linear work on partial sums;
before any other op an `all_sum` makes a partial value whole. So a layer has one sum after attention's output projection
and one after the MLP's last, and only one where both are added to the same residual.

A norm of queries or keys over all heads has one sum more, of the mean squares of both: two numbers for each token.

The first rank of a stage alone adds to a partial sum what is whole: biases and residuals. So these sums need no op of
their own, on any rank.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.attention import Attention
from mlxr.compiler.ir.ops.cache import CacheWrite
from mlxr.compiler.ir.ops.collectives import AllSum, GatherResult, Receive, Send
from mlxr.compiler.ir.ops.elementwise import Add, Scale
from mlxr.compiler.ir.ops.experts import ExpertLinear, ExpertSum, Route
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.rope import Rope
from mlxr.compiler.ir.ops.rows import Embed, GateRows, GatherRows
from mlxr.compiler.ir.ops.shared_norm import MeanSquares, NormOfPart
from mlxr.compiler.parallel.tensor_slice import TensorSlice, slice_of
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.share import Share

State = Literal["whole", "split", "partial"]


@dataclass
class Shard:
    """Collects the values and ops of one rank's graph."""

    graph: OpGraph
    spec: ModelSpec
    share: Share
    arena: ArenaGeometry
    values: dict[str, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    states: dict[str, State] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """For a value of the model that has another name here: a sum, or the only addend that this rank has."""

    def run(self) -> OpGraph:
        """The graph of the rank.

        Raises:
            PlanError: an op or a tensor has no rule by which ranks divide it.
        """
        share = self.share
        own = {allocation.name: allocation for allocation in self.arena.allocations}
        for value in self.graph.values:
            if value.role in ("input", "constant"):
                self._declare(value, "whole")
            elif value.role == "store" and value.name in own:
                self._declare(replace(value, shape=own[value.name].shape), "split")
        mine = [op for op in self.graph.ops if self._is_mine(op)]
        if not share.is_first:
            self._receive(self._border(share.layers[0]))
        for op in mine:
            self._add(op)
        if share.is_last:
            (result,) = self.graph.outputs
            return self._finished(self._result_of_last(result))
        sent = self._send(self._whole(self._border(share.layers[1])))
        return self._finished(self._gather({"after": sent}))

    def _is_mine(self, op: Op) -> bool:
        if op.layer is not None:
            return self.share.layers[0] <= op.layer < self.share.layers[1]
        return self.share.is_first if isinstance(op.attrs, Embed) else self.share.is_last

    def _border(self, layer: int) -> str:
        """The value that goes from the layers before `layer` to that layer and those after it."""
        before = {
            op.name
            for op in self.graph.ops
            if isinstance(op.attrs, Embed) or (op.layer is not None and op.layer < layer)
        }
        crossing = [
            name
            for op in self.graph.ops
            if op.name in before
            for name in op.outputs.values()
            if any(consumer.name not in before for consumer in self.graph.consumers(name))
        ]
        if len(crossing) != 1:
            raise PlanError(f"stages cannot part before layer {layer}: {', '.join(crossing)} are read after it")
        return crossing[0]

    def _receive(self, name: str) -> None:
        value = self.graph.value(name)
        width = value.shape[1]
        assert isinstance(width, int), "only rows have symbolic dims"
        self._emit(Op("received", Receive(width, value.dtype), {"token_ids": "token_ids"}, {"out": name}), "whole")

    def _send(self, name: str) -> str:
        value = replace(self.values[name], name="sent")
        self._declare(value, "whole")
        self.ops.append(Op("sent", Send(), {"x": name}, {"out": value.name}))
        return value.name

    def _result_of_last(self, result: str) -> str:
        """The result at rank 0, from what this rank of the last stage has."""
        own = self.names.get(result, result)
        if self.states[own] == "partial":
            own = self._whole(result)
        if self.states[own] == "whole" and self.share.split.pipeline == 1:
            return own
        of_others = self.states[own] == "whole" and self.share.tensor_rank > 0  # but they take part in its sums
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
        self._declare(value, "whole")
        self.ops.append(Op(f"{name}.gathered", attrs, {"rows": "logit_rows"} | inputs, {"out": name}))
        return name

    def _rename(self, name: str, to: str) -> None:
        self.values = {
            (to if key == name else key): replace(value, name=to) if key == name else value
            for key, value in self.values.items()
        }
        self.states[to] = self.states[name]
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
        """Adds an op's share."""
        attrs = op.attrs
        if isinstance(attrs, Add):
            self._add_sum(op, attrs)
        elif isinstance(attrs, Scale | GatherRows | GateRows):
            x = self._read(op, "x")
            others = {port: self._whole(name) for port, name in op.inputs.items() if port != "x"}
            self._emit(replace(op, inputs={"x": x} | others), self.states[x])
        elif isinstance(attrs, Embed):
            table = self._weight(op.inputs["table"])
            assert table is not None, "the first stage has the table"
            whole = self.share.split.tensor == 1
            embed = attrs if whole else replace(attrs, first_row=self.share.vocabulary[0])
            self._emit(replace(op, attrs=embed), "whole" if whole else "partial")
        elif isinstance(attrs, ExpertSum):
            inputs = {port: self._read(op, port) for port in op.inputs}
            self._emit(replace(op, inputs=inputs), "whole" if self.share.split.tensor == 1 else "partial")
        elif isinstance(attrs, Norm) and self.states[self._read(op, "x")] == "split" and self._norms_all_heads(op):
            self._add_norm_of_part(op, attrs)
        else:
            self._add_other(op)

    def _norms_all_heads(self, op: Op) -> bool:
        """Whether a norm of queries or keys is one of all heads together; one group may also be the only KV head."""
        assert op.layer is not None, "attention is in layers"
        norm = self.spec.model.layer(op.layer).attention.qk_norm
        return norm is not None and norm.scope == "all"

    def _add_norm_of_part(self, op: Op, attrs: Norm) -> None:
        """Adds the norm of this rank's queries or keys, which all ranks' are normalised with."""
        assert attrs.kind == "rms" and op.layer is not None, "the shares have no other norm of split columns"
        prefix, _, role = op.inputs["weight"].rpartition(".")
        attention, share = self.spec.model.attention, self.share
        means = f"{prefix}.mean_squares"
        if means not in self.values:
            norms = {role: self.graph.consumers(f"{prefix}.{role}_norm")[0] for role in ("q", "k")}
            squares = MeanSquares(
                q_width=attention.num_heads * attention.head_dim,
                k_width=attention.num_kv_heads * attention.head_dim,
                counts_keys=share.heads[0] == share.kv_heads[0] * attention.gqa_ratio,
            )
            inputs = {role: self._read(norm, "x") for role, norm in norms.items()}
            self._emit(Op(means, squares, inputs, {"out": means}, op.layer), "partial")
        self._weight(op.inputs["weight"])
        part = NormOfPart(column=("q_norm", "k_norm").index(role), eps=attrs.eps)
        inputs = {"x": self._read(op, "x"), "weight": op.inputs["weight"], "mean_squares": self._whole(means)}
        self._emit(replace(op, attrs=part, inputs=inputs), "split")

    def _add_other(self, op: Op) -> None:
        """Adds an op that reads whole or split values, and weights."""
        inputs: dict[str, str] = {}
        state: State = "whole"
        for port, name in op.inputs.items():
            value = self.graph.value(name)
            if value.role == "weight":
                own = self._weight(name)
                if own is None:
                    continue  # a bias that the stage's first rank adds
                inputs[port] = name
                part = self._slice(name)
                if part.columns is not None:
                    state = "partial"
                elif part.rows is not None:
                    state = "split"
            else:
                inputs[port] = self._whole(name)
                if self.states[inputs[port]] == "split" and value.role == "activation" and state == "whole":
                    state = "split"
        if isinstance(op.attrs, Route):
            state = "whole"
        self._emit(replace(op, attrs=self._attrs_of(op), inputs=inputs), state)

    def _attrs_of(self, op: Op) -> OpKind:
        """The attributes of an op that counts heads or experts, with this rank's numbers."""
        attrs, share = op.attrs, self.share
        heads, kv_heads = share.heads[1] - share.heads[0], share.kv_heads[1] - share.kv_heads[0]
        if share.split.tensor == 1:
            return attrs
        if isinstance(attrs, Route):
            first, last = self._experts(op)
            return replace(attrs, first_expert=first, owned=last - first)
        if isinstance(attrs, ExpertLinear):
            first, last = share.experts[attrs.num_experts]
            return replace(attrs, num_experts=last - first)
        if isinstance(attrs, Attention):
            return replace(attrs, num_heads=heads, num_kv_heads=kv_heads)
        if isinstance(attrs, CacheWrite):
            return replace(attrs, num_kv_heads=kv_heads)
        own = {self.spec.model.attention.num_kv_heads: kv_heads, self.spec.model.attention.num_heads: heads}
        if isinstance(attrs, Rope):
            return replace(attrs, num_heads=own[attrs.num_heads])
        if isinstance(attrs, Norm) and attrs.groups > 1:
            return replace(attrs, groups=own[attrs.groups])
        return attrs

    def _experts(self, op: Op) -> tuple[int, int]:
        assert op.layer is not None, "experts are in layers"
        experts = self.spec.model.layer(op.layer).mlp.experts
        assert experts is not None, "the op routes to experts"
        return self.share.experts[experts.count]

    def _add_sum(self, op: Op, attrs: Add) -> None:
        a, b = self._read(op, "a"), self._read(op, "b")
        states = {self.states[a], self.states[b]}
        if states != {"whole", "partial"}:
            self._emit(replace(op, inputs={"a": a, "b": b}), states.pop() if len(states) == 1 else "partial")
        elif self.share.tensor_rank == 0:
            self._emit(replace(op, inputs={"a": a, "b": b}), "partial")
        elif self.states[a] == "partial":
            self.names[op.out] = a
        elif attrs.alpha == 1 or self._scale_experts(b, attrs.alpha):
            self.names[op.out] = b
        else:
            self._emit(replace(op, attrs=Scale(attrs.alpha), inputs={"x": b}), "partial")

    def _scale_experts(self, name: str, factor: float) -> bool:
        """Scales the weights of experts, if this is their sum: no kernel scales that. False for other values."""
        makers = {made: index for index, op in enumerate(self.ops) for made in op.outputs.values()}
        total = self.ops[makers[name]]
        if not isinstance(total.attrs, ExpertSum):
            return False
        index = makers[total.inputs["weights"]]
        route = self.ops[index].attrs_as(Route)
        self.ops[index] = replace(self.ops[index], attrs=replace(route, scale=route.scale * factor))
        return True

    def _read(self, op: Op, port: str) -> str:
        """The value here that a port reads."""
        return self.names.get(op.inputs[port], op.inputs[port])

    def _whole(self, name: str) -> str:
        """The value here of that name, summed over the ranks if it is partial."""
        here = self.names.get(name, name)
        if self.states[here] != "partial":
            return here
        value = replace(self.values[here], name=f"{name}.all")
        layer = self.ops[-1].layer
        self._declare(value, "whole")
        self.ops.append(Op(f"{name}.all", AllSum(), {"x": here}, {"out": value.name}, layer))
        self.names[name] = value.name
        return value.name

    def _slice(self, name: str) -> TensorSlice:
        part = slice_of(self.spec, self.share, name)
        assert part is not None, "the caller has seen that this rank has it"
        return part

    def _weight(self, name: str) -> Value | None:
        """This rank's part of a weight; None if it has nothing of it."""
        if name in self.values:
            return self.values[name]
        part = slice_of(self.spec, self.share, name)
        if part is None:
            return None
        value = self.graph.value(name)
        shape = list(value.shape)
        for axis, cut in enumerate((part.rows, part.columns)):
            if cut is not None:
                shape[axis] = cut[1] - cut[0]
        return self._declare(replace(value, shape=tuple(shape)), "whole")

    def _declare(self, value: Value, state: State) -> Value:
        self.values[value.name] = value
        self.states[value.name] = state
        return value

    def _emit(self, op: Op, state: State) -> None:
        """Adds an op of this rank, and its results with the shapes that its rule infers."""
        tensors = {port: self.values[name].tensor for port, name in op.inputs.items()}
        for port, tensor in op.attrs.infer(tensors).items():
            if port in op.outputs:
                dtype: DType = tensor.dtype
                self._declare(Value(op.outputs[port], "activation", tensor.shape, dtype), state)
        layer = None if op.layer is None else op.layer - self.share.layers[0]
        self.ops.append(replace(op, layer=layer))


def shard(graph: OpGraph, spec: ModelSpec, share: Share, arena: ArenaGeometry) -> OpGraph:
    """The source graph of a rank.

    Args:
        graph: the source graph of the whole model.
        spec: its spec.
        share: the rank's part.
        arena: the rank's arena.

    Raises:
        PlanError: an op or a tensor has no rule by which ranks divide it.
    """
    return Shard(graph, spec, share, arena).run()
