"""Op kinds: frozen dataclasses of an op's attributes, which also know its ports, shape rule, work, and division.

The kinds are in `compiler/ir/ops`, one module for each family of kinds. A new kind is a new class there: `op_registry`
finds it, and no list names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar, Literal

from mlxr.compiler.ir.division import Holding, Holdings
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

AttrValue = int | float | str | bool | None
"""The type of an attribute in JSON."""
Access = Literal["read", "write", "readwrite"]
"""What an op does with its layer's rows of a store."""
OpFamily = Literal["gather", "norm", "matmul", "rope", "cache", "attention", "elementwise", "collective"]
"""How the picture of a graph draws an op."""
Stage = Literal["source", "fused", "ordered"]

NormKind = Literal["rms", "layer"]
GateKind = Literal["sigmoid", "softplus"]
ActivationKind = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
"""Activations of one argument; `relu2` is the square of relu."""
FinishKind = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "swiglu_oai"]
"""Activations of a projection; only gated ones have `swiglu_oai`, only those without a gate `xielu`."""
RopeLayout = Literal["half", "interleaved"]
Router = Literal["softmax_topk", "topk_softmax", "sigmoid"]
NormScope = Literal["head", "heads", "all"]

EVERY_STAGE: frozenset[Stage] = frozenset({"source", "fused", "ordered"})
SOURCE_STAGES: frozenset[Stage] = frozenset({"source", "fused"})
"""Stages of kinds that the passes must fuse into other kinds."""
FUSED_STAGES: frozenset[Stage] = frozenset({"fused", "ordered"})
"""Stages of kinds that only passes create."""


@dataclass(frozen=True)
class OpKind:
    """The attributes of one op. Subclasses are the kinds.

    A kind without attributes of its own needs no `dataclass` decorator: its base has one. A kind that lacks a fact
    which somebody will ask for cannot even be declared.

    Attributes:
        name: the kind's name, in files and messages.
        summary: what it computes, in one line.
        family: how the picture draws it.
        inputs, optional, outputs: its ports. A port `token` orders accesses of stores. It is optional because the
            pass `order_arena` binds it later; the verifier of stage `ordered` requires it.
        optional_outputs: output ports that only some ops of the kind have, as their inputs say.
        accesses: its input ports that are stores, and what it does with its layer's rows of each. Dead-op removal keeps
            an op that writes.
        linear: ports whose sum over ranks may wait, because the op of a sum is the sum of what it gives.
        stages: the stages of the pipeline whose graphs may contain it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    family: ClassVar[OpFamily]
    inputs: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[tuple[str, ...]] = ("out",)
    optional_outputs: ClassVar[tuple[str, ...]] = ()
    accesses: ClassVar[Mapping[str, Access]] = MappingProxyType({})
    linear: ClassVar[tuple[str, ...]] = ()
    stages: ClassVar[frozenset[Stage]] = EVERY_STAGE

    def __init_subclass__(cls) -> None:
        """Refuses a kind without a fact that its stages need; bases of kinds, which have no name, may lack some."""
        super().__init_subclass__()
        if "name" not in vars(cls):
            return
        facts = [fact for fact in ("summary", "family", "inputs") if not hasattr(cls, fact)]
        facts += [rule for rule in _rules(cls.stages) if getattr(cls, rule) is getattr(OpKind, rule)]
        if facts:
            raise TypeError(f"op kind {cls.name} lacks {', '.join(facts)}: see OpKind")

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """The shape rule: shapes and types of the outputs, from those of the inputs.

        Args:
            t: the inputs by port.

        Returns:
            The outputs by port.

        Raises:
            RuleError: the inputs do not fit each other or the attributes; the message says what was got and expected.
        """
        raise NotImplementedError(f"{type(self).__name__} has no shape rule")

    def work(self, use: Use, dims: Dims) -> OpWork:
        """What the op does for a batch; every kind that may be in an ordered graph says it.

        Args:
            use: the op's place in its graph.
            dims: the numbers of the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say its work")

    def weights_per_token(self, use: Use) -> Fraction | None:
        """The part of its weights that one token needs; None: a step reads all of them, once."""
        return None

    def divide(self, t: Tensors, has: Holdings, share: Share) -> "Division":
        """What the op is on a rank; every kind that may be in a source graph says it.

        Args:
            t: the inputs of the whole model's op by port.
            has: what the rank has of them. Only at `linear` ports that may be a partial sum.
            share: the rank's part of the model.

        Raises:
            RuleError: the op cannot be computed from that.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how ranks divide it")

    @property
    def access(self) -> Access | None:
        """What it does with stores, all of them together; None: it has none."""
        kinds = set(self.accesses.values())
        return next(iter(kinds)) if len(kinds) == 1 else "readwrite" if kinds else None

    @property
    def attributes(self) -> dict[str, AttrValue]:
        """The attributes by name, as in JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _rules(stages: frozenset[Stage]) -> list[str]:
    """The rules that a kind in graphs of these stages must have."""
    rules = {"infer": True, "work": "ordered" in stages, "divide": "source" in stages}
    return [rule for rule, needed in rules.items() if needed]


@dataclass(frozen=True)
class Division:
    """What an op of the model is on a rank.

    Attributes:
        attrs: its kind, with the rank's numbers; None: the rank's result is its input, as it is.
        out: what the rank has of the results.
        inputs: by port, that of the model's op whose value it is; None: all of them, as they are.
    """

    attrs: OpKind | None
    out: Holding
    inputs: Mapping[str, str] | None = None
