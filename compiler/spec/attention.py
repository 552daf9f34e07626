"""The attention block in a spec.

Invariants after validation: num_heads is a multiple of num_kv_heads; head_dim is always a number (a spec may leave it
out) and a multiple of 8, and so is v_dim where it is given.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from mlxr.compiler.formats.stores import KEYS, LATENTS, VALUES
from mlxr.compiler.spec.fields import INT32_MAX, Contradictions, Count, Epsilon, Flag, Positive
from mlxr.compiler.spec.latent import Latent
from mlxr.compiler.spec.record import Record

_NOT_WITH_LATENT = {
    "qkv_bias": False,
    "output_bias": False,
    "sliding_window": None,
    "softcap": None,
    "sinks": False,
    "qk_norm": None,
    "qkv_limit": None,
    "values_from_keys": False,
    "kv_from": None,
    "output_gate": None,
    "chunked": False,
    "v_dim": None,
    "value_scale": None,
    "alibi": None,
}
_NEEDS_CAUSAL = {
    "chunked": False,
    "softcap": None,
    "alibi": None,
    "sinks": False,
    "kv_from": None,
    "output_gate": None,
    "temperature": None,
    "latent": None,
    "v_dim": None,
}
_MIN_HEAD_DIM = 32
_MAX_HEAD_DIM = 512


class HeadDimOf(NamedTuple):
    """In place of a head_dim that the spec leaves out: the values of hidden_size and num_heads, not yet checked."""

    hidden_size: Any
    num_heads: Any


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= INT32_MAX


def _resolve_head_dim(value: Any) -> Any:
    if not isinstance(value, HeadDimOf):
        return value
    hidden_size, num_heads = value
    if not (_is_count(hidden_size) and _is_count(num_heads)):
        return _MIN_HEAD_DIM  # the spec is refused because of one of these; a second error would only distract
    wrong = Contradictions()
    head_dim = hidden_size // num_heads
    if hidden_size % num_heads:
        wrong.add(
            "",
            f"hidden_size {hidden_size} / num_heads {num_heads} is not a whole number, so head_dim has no default",
            "give head_dim, or correct hidden_size or num_heads",
        )
    elif not _MIN_HEAD_DIM <= head_dim <= _MAX_HEAD_DIM or head_dim % 8:
        wrong.add(
            "",
            f"not given, so it is hidden_size {hidden_size} / num_heads {num_heads} = {head_dim}; "
            f"expected a multiple of 8 from {_MIN_HEAD_DIM} to {_MAX_HEAD_DIM}",
            "give head_dim if it is another number, else correct num_heads",
        )
    wrong.refuse()
    return head_dim


class QkNorm(Record):
    """Normalisation of queries and keys, before RoPE or after it."""

    scope: Literal["head", "heads", "all"]
    """`head`: each head by itself, one weight of head_dim for all heads; `heads`: each head by itself, with weights of
    its own; `all`: all heads together, a weight of num_heads x head_dim."""
    weight: Flag = True
    """Whether the norms multiply by weights."""
    bias: Flag = False
    """Whether the norms add a bias; layer norms only."""
    kind: Literal["rms", "layer"] | None = None
    """As `model.norm.kind`; null for the same kind."""
    eps: Epsilon | None = None
    """As `model.norm.eps`; null for the same number."""
    after_rope: Flag = False
    """Whether heads are rotated first and normalised then; not with scope `all`."""
    values: Flag = False
    """Whether each head of the values is normalised, too, without weights; not with scope `all`."""

    @model_validator(mode="after")
    def _check(self) -> "QkNorm":
        wrong = Contradictions()
        if self.after_rope and self.scope == "all":
            wrong.add(
                "after_rope",
                "heads that are normalised together are normalised before they are rotated",
                "set after_rope to false, or scope to head or heads",
            )
        if self.values and self.scope == "all":
            wrong.add("values", "values are normalised by heads, but scope is all", "set values to false")
        if not self.weight and (self.bias or self.scope != "head"):
            what = "a bias" if self.bias else f"scope {self.scope}"
            wrong.add(
                "weight", f"norms with {what} have weights", "set weight to true, or bias to false and scope to head"
            )
        wrong.refuse()
        return self


class Temperature(Record):
    """Queries grow with their position: times 1 + beta ln(1 + floor(position / original_context))."""

    beta: Positive
    """How fast they grow."""
    original_context: Count
    """Positions below it keep their queries."""
    first_position: Annotated[int, Field(ge=0, le=1, strict=True)] = 0
    """What positions are counted from here: 0 or 1."""


class OutputGate(Record):
    """A factor of what attention gives, before the output projection: a function of a projection of its input."""

    scope: Literal["head", "element"]
    """`head`: one number for each query head; `element`: one for each of its elements."""
    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    """The function: `softplus` is ln(1 + e^x)."""


class Attention(Record):
    """Grouped-query attention. Each of `num_kv_heads` keys and values serves num_heads / num_kv_heads queries."""

    num_heads: Count
    """Query heads."""
    num_kv_heads: Count
    """Key and value heads; num_heads is a multiple of it."""
    head_dim: Annotated[int, Field(ge=_MIN_HEAD_DIM, le=_MAX_HEAD_DIM, strict=True), BeforeValidator(_resolve_head_dim)]
    """Elements of one head: 32 to 512, a multiple of 8. A spec may leave it out: hidden_size / num_heads."""
    v_dim: Annotated[int, Field(ge=_MIN_HEAD_DIM, le=_MAX_HEAD_DIM, strict=True)] | None = None
    """Elements of a value, and of a head's result: 32 to 512, a multiple of 8; null for head_dim."""
    value_scale: Positive | None = None
    """Factor of the values; null for 1. Not with output_bias."""
    qkv_bias: Flag = False
    """Whether the query, key and value projections add a bias."""
    qkv_limit: Positive | None = None
    """Elements of the query, key and value projections are within +- this; null for no limit."""
    output_bias: Flag = False
    """Whether the output projection adds a bias."""
    causal: Flag = True
    """Whether a query sees the tokens up to its own alone; if not, as in encoders, it sees the whole text, and nothing
    is cached. Layers of a model are alike in that."""
    sliding_window: Count | None = None
    """Tokens a query may see, itself included; null for all. It may exceed the context, and then hides nothing. If not
    `causal`, it sees so many to either side."""
    chunked: Flag = False
    """Whether the window stands still: the sequence is cut into chunks of `sliding_window` tokens, and a query sees
    those of its own chunk up to itself."""
    scale: Positive | None = None
    """Factor of the scores; null for 1 / sqrt(head_dim)."""
    softcap: Positive | None = None
    """Scores become softcap x tanh(score / softcap); null for none."""
    alibi: Positive | None = None
    """Biases of scores by distance (ALiBi), with this exponent, usually 8; null for none. Of n heads, n a power of two,
    head h from 1 on takes 2^(-alibi h / n) x distance off its scores. Not with softcap."""
    sinks: Flag = False
    """Whether each head has one more, learned score in its softmax, whose share no value gets."""
    qk_norm: QkNorm | None = None
    """Normalisation of queries and keys; null for none."""
    values_from_keys: Flag = False
    """Whether values are what the projection of the keys gives, before their norm and RoPE: they have no projection of
    their own. Needs qk_norm by heads."""
    kv_from: str | None = None
    """A layer type: keys and values are those of the last earlier layer of that type, and these layers have no
    projections for them; null for their own."""
    output_gate: OutputGate | None = None
    """A factor of the result of each head before the output projection; null for none."""
    temperature: Temperature | None = None
    """Growth of the queries with their position, after RoPE; null for none."""
    latent: Latent | None = None
    """Latent attention (MLA): heads' keys and values are made of one row of each token; null for none."""

    @model_validator(mode="after")
    def _check(self) -> "Attention":
        wrong = Contradictions()
        if self.num_heads % self.num_kv_heads:
            wrong.add(
                "num_kv_heads",
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}; "
                "each KV head serves the same number of query heads",
                f"num_kv_heads can be {_divisors(self.num_heads)}" if self.num_heads <= 4096 else "",
            )
        wrong.check_multiple("head_dim", self.head_dim, 8)
        if self.v_dim is not None:
            wrong.check_multiple("v_dim", self.v_dim, 8)
        if self.value_scale is not None and self.output_bias:
            wrong.add("value_scale", "a factor of values beside a bias of the output projection", "leave one out")
        if self.alibi is not None and self.softcap is not None:
            wrong.add("alibi", "biases by distance beside a cap of the scores", "leave one out")
        if self.chunked and self.sliding_window is None:
            wrong.add("chunked", "sliding_window, the tokens of a chunk, is null", "give sliding_window")
        if self.values_from_keys and (self.qk_norm is None or self.qk_norm.scope == "all"):
            wrong.add("values_from_keys", "values are taken where keys are normalised by heads", "give qk_norm")
        if self.values_from_keys and self.result_dim != self.head_dim:
            what = f"values that are keys have head_dim {self.head_dim}, but v_dim is {self.v_dim}"
            wrong.add("v_dim", what, "leave it out")
        if self.kv_from is not None and self.qk_norm is not None and self.qk_norm.after_rope:
            wrong.add(
                "kv_from", "queries alone are normalised before RoPE, but qk_norm.after_rope is true", "remove it"
            )
        if self.latent is not None:
            self._check_latent(self.latent, wrong)
        for name, neutral in _NEEDS_CAUSAL.items():
            if not self.causal and getattr(self, name) != neutral:
                wrong.add(name, f"attention that is not causal has no {name}", "leave it out, or set causal to true")
        wrong.refuse()
        return self

    def _check_latent(self, latent: Latent, wrong: Contradictions) -> None:
        if self.num_kv_heads != 1:
            wrong.add("num_kv_heads", f"latent attention keeps one row for all heads, not {self.num_kv_heads}", "use 1")
        if self.head_dim != latent.qk_dim:
            parts = f"nope_dim {latent.nope_dim} + rope_dim {latent.rope_dim}"
            wrong.add("head_dim", f"head_dim {self.head_dim} is not {parts}", f"use {latent.qk_dim}, or leave it out")
        for name, neutral in _NOT_WITH_LATENT.items():
            if getattr(self, name) != neutral:
                wrong.add(name, f"latent attention has no {name}", "leave it out")
        if self.temperature is not None and self.temperature.first_position:
            wrong.add("temperature.first_position", "latent attention counts positions from 0", "use 0")

    @property
    def gqa_ratio(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def gate_size(self) -> int:
        """Numbers of a head's output gate; 0 without one."""
        return 0 if self.output_gate is None else 1 if self.output_gate.scope == "head" else self.result_dim

    @property
    def rope_dim(self) -> int:
        """Elements of a head of which `rope.fraction` is the rotated share: of latent attention its rotated part."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def cached_rows(self) -> tuple[tuple[str, int], ...]:
        """Store and elements of each row of a token in the cache: keys and values, or that of latent attention."""
        if self.latent is not None:
            return ((LATENTS, self.latent.row_dim),)
        return ((KEYS, self.head_dim), (VALUES, self.result_dim)) * self.num_kv_heads

    @property
    def result_dim(self) -> int:
        """Elements of a value and of a head's result, which the output projection reads."""
        return self.latent.v_dim if self.latent is not None else self.v_dim or self.head_dim

    @property
    def packed_width(self) -> int:
        """Columns of queries, keys and values together."""
        return (self.num_heads + self.num_kv_heads) * self.head_dim + self.num_kv_heads * self.result_dim

    @property
    def score_scale(self) -> float:
        """The factor of the scores, resolved."""
        return 1 / math.sqrt(self.head_dim) if self.scale is None else self.scale


def _divisors(value: int) -> str:
    return ", ".join(str(d) for d in range(1, value + 1) if value % d == 0)
