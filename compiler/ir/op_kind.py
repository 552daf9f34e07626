"""What an op kind is: a frozen dataclass of its attributes, which also knows its ports and its shape rule.

`compiler/ir/ops` has the kinds, one module for each family of them. A new kind is a new class there: `op_registry`
finds it, and no list names it.
"""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from mlxr.compiler.ir.tensor import Tensor, Tensors

AttrValue = int | float | str | bool | None
"""An attribute as JSON holds it."""
ArenaAccess = Literal["none", "read", "write", "readwrite"]
Family = Literal["gather", "norm", "matmul", "rope", "cache", "attention", "elementwise"]
"""What the picture of a graph draws an op as."""
Stage = Literal["source", "fused", "ordered"]

NormKind = Literal["rms", "layer"]
ActivationKind = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
"""Activations of one argument; `relu2` is the square of relu."""
GatedKind = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "swiglu_oai"]
"""Activations of a gate; `swiglu_oai` has two arguments, and only gated projections have it."""
RopeLayout = Literal["half", "interleaved"]
Router = Literal["softmax_topk", "topk_softmax", "sigmoid"]
NormScope = Literal["head", "heads", "all"]

EVERY_STAGE: frozenset[Stage] = frozenset({"source", "fused", "ordered"})
SOURCE_STAGES: frozenset[Stage] = frozenset({"source", "fused"})
"""Stages of kinds that the passes must fuse into others."""
FUSED_STAGES: frozenset[Stage] = frozenset({"fused", "ordered"})
"""Stages of kinds that only passes make."""


@dataclass(frozen=True)
class OpKind:
    """The attributes of one op. Subclasses are the kinds.

    A kind without attributes of its own needs no `dataclass` decorator: its base has one.

    Attributes:
        name: the kind's name, in files and messages.
        summary: what it computes, in one line.
        family: what the picture draws it as.
        inputs, optional, outputs: its ports. A port `token` orders accesses of the KV arena. It is optional because the
            pass `order_arena` binds it; the verifier of the stage `ordered` demands it.
        arena: how it touches the KV arena, of which it sees its op's layer. Anything but `none` is an effect, which
            dead-op removal keeps.
        stages: the stages of the pipeline whose graphs may hold it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    family: ClassVar[Family]
    inputs: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[tuple[str, ...]] = ("out",)
    arena: ClassVar[ArenaAccess] = "none"
    stages: ClassVar[frozenset[Stage]] = EVERY_STAGE

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """The shape rule: what the op makes of its inputs.

        Args:
            t: inputs by port.

        Returns:
            Outputs by port.

        Raises:
            RuleError: the inputs and the attributes do not fit; the message says what it got and what it expected.
        """
        raise NotImplementedError(f"{type(self).__name__} has no shape rule")

    @property
    def attributes(self) -> dict[str, AttrValue]:
        """The attributes by name, as JSON holds them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
