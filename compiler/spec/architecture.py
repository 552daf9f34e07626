"""The architecture half of a spec: a model by its properties, never by its name.

Invariants after validation: num_heads is a multiple of num_kv_heads; head_dim is always a number (a spec may leave it
out); the rotary dim is even; no weight matrix has more than 2^31 - 1 elements, so kernels may index one with 32 bits.
"""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from mlxr.compiler.spec.fields import INT32_MAX, Contradictions, Count, Flag, Frozen

_MIN_HEAD_DIM = 32
_MAX_HEAD_DIM = 256
_MAX_EXACT_POSITION = 2**24  # the first whole number whose successor float32 cannot hold


class Norm(Frozen):
    """Normalisation before the attention and MLP blocks, and before the output."""

    kind: Literal["rms"] = "rms"
    """`rms`: x / sqrt(mean(x^2) + eps) * weight."""
    eps: Annotated[float, Field(ge=1e-20, lt=1, strict=True)] = 1e-5
    """Added to the mean square."""


class NoScaling(Frozen):
    """RoPE frequencies as they are."""

    kind: Literal["none"] = "none"
    """`none`: frequencies are not scaled."""


class LinearScaling(Frozen):
    """Positions divided by `factor` (position interpolation)."""

    kind: Literal["linear"]
    """`linear`: positions are divided by `factor`."""
    factor: Annotated[float, Field(ge=1, le=2**20, strict=True)]
    """How many times longer than the trained context."""


class Llama3Scaling(Frozen):
    """Llama 3.1's piecewise scaling: low frequencies divided by `factor`, high ones kept, a ramp between."""

    kind: Literal["llama3"]
    """`llama3`: low frequencies are divided by `factor`, high ones kept, with a ramp between."""
    factor: Annotated[float, Field(ge=1, le=2**20, strict=True)]
    """Divisor of the low frequencies."""
    low_freq_factor: Annotated[float, Field(gt=0, le=2**20, strict=True)] = 1.0
    """Wavelengths over original_context / low_freq_factor are fully scaled."""
    high_freq_factor: Annotated[float, Field(gt=0, le=2**20, strict=True)] = 4.0
    """Wavelengths under original_context / high_freq_factor are kept; must be greater than low_freq_factor."""
    original_context: Count = 8192
    """Context length the model was first trained with."""

    @model_validator(mode="after")
    def _check(self) -> "Llama3Scaling":
        wrong = Contradictions()
        if self.high_freq_factor <= self.low_freq_factor:
            wrong.add(
                "high_freq_factor",
                f"high_freq_factor {self.high_freq_factor:g} must be greater than "
                f"low_freq_factor {self.low_freq_factor:g}",
                "Llama 3 models use low_freq_factor 1 and high_freq_factor 4",
            )
        wrong.refuse()
        return self


class Rope(Frozen):
    """Rotary position embedding."""

    theta: Annotated[float, Field(gt=1, le=1e15, strict=True)] = 10000.0
    """Base of the frequencies: theta^(-2i / rotary_dim)."""
    fraction: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    """Share of each head that is rotated; the rest passes through."""
    layout: Literal["half", "interleaved"] = "half"
    """`half` rotates (x[i], x[i + rotary_dim/2]), `interleaved` rotates (x[2i], x[2i+1])."""
    scaling: Annotated[NoScaling | LinearScaling | Llama3Scaling, Field(discriminator="kind")] = NoScaling()
    """How frequencies are stretched for contexts longer than the trained one."""


class _HeadDimOf(NamedTuple):
    """Stands for a head_dim that the spec left out: hidden_size / num_heads, as given and unchecked."""

    hidden_size: Any
    num_heads: Any


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= INT32_MAX


def _resolve_head_dim(value: Any) -> Any:
    if not isinstance(value, _HeadDimOf):
        return value
    hidden_size, num_heads = value
    if not (_is_count(hidden_size) and _is_count(num_heads)):
        return _MIN_HEAD_DIM  # the spec is refused for one of these two; a second error here would only distract
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


class Attention(Frozen):
    """Grouped-query attention. Each of `num_kv_heads` keys and values serves num_heads / num_kv_heads queries."""

    num_heads: Count
    """Query heads."""
    num_kv_heads: Count
    """Key and value heads; num_heads is a multiple of it."""
    head_dim: Annotated[int, Field(ge=_MIN_HEAD_DIM, le=_MAX_HEAD_DIM, strict=True), BeforeValidator(_resolve_head_dim)]
    """Elements of one head: 32 to 256, a multiple of 8. A spec may leave it out: hidden_size / num_heads."""
    qkv_bias: Flag = False
    """Whether the query, key and value projections add a bias."""
    output_bias: Flag = False
    """Whether the output projection adds a bias."""
    sliding_window: Count | None = None
    """Tokens a query may see, itself included; null for all. It may exceed the context, and then hides nothing."""

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
        if self.head_dim % 8:
            low = self.head_dim // 8 * 8
            wrong.add(
                "head_dim", f"head_dim {self.head_dim} is not a multiple of 8", f"nearest are {low} and {low + 8}"
            )
        wrong.refuse()
        return self

    @property
    def gqa_ratio(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads


class Mlp(Frozen):
    """Gated feed-forward block: down(activation(gate(x)) * up(x))."""

    intermediate_size: Count
    """Width between the projections: a multiple of 8."""
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"
    """Applied to the gate; `gelu` is the exact one (erf), `gelu_tanh` its tanh approximation."""
    bias: Flag = False
    """Whether the three projections add a bias."""


class Model(Frozen):
    """The architecture."""

    vocab_size: Count
    """Rows of the embedding table."""
    hidden_size: Count
    """Width of the residual stream: a multiple of 8. It need not be num_heads x head_dim."""
    num_layers: Annotated[int, Field(ge=1, le=1024, strict=True)]
    """Decoder layers."""
    context: Annotated[int, Field(ge=1, le=_MAX_EXACT_POSITION, strict=True)]
    """Longest sequence, prompt and generated tokens together; at most 2^24, where float32 still counts exactly."""
    norm: Norm = Norm()
    """Normalisation of the residual stream."""
    rope: Rope = Rope()
    """How queries and keys are rotated by their positions."""
    attention: Attention
    """The attention block of every layer."""
    mlp: Mlp
    """The feed-forward block of every layer."""
    tie_embeddings: Flag = False
    """Whether the output projection is the embedding table."""
    tensor_names: str = "llama"
    """The weight-name map: a file of models/families, without its ending."""

    @model_validator(mode="before")
    @classmethod
    def _derive_head_dim(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(attention := data.get("attention"), dict):
            default = _HeadDimOf(data.get("hidden_size"), attention.get("num_heads"))
            return {**data, "attention": {"head_dim": default, **attention}}
        return data

    @model_validator(mode="after")
    def _check(self) -> "Model":
        wrong = Contradictions()
        for at, value in (("hidden_size", self.hidden_size), ("mlp.intermediate_size", self.mlp.intermediate_size)):
            if value % 8:
                wrong.add(
                    at,
                    f"{at.rpartition('.')[2]} {value} is not a multiple of 8; kernels read 16 bytes at a time",
                    f"nearest are {value // 8 * 8} and {value // 8 * 8 + 8}",
                )
        rotary = self.attention.head_dim * self.rope.fraction
        if abs(rotary - self.rotary_dim) > 1e-6 or self.rotary_dim % 2 or self.rotary_dim == 0:
            nearest = max(2, 2 * round(rotary / 2))
            wrong.add(
                "rope.fraction",
                f"the rotary dim is head_dim {self.attention.head_dim} x fraction {self.rope.fraction:g} = {rotary:g}; "
                "expected an even whole number, because elements are rotated in pairs",
                f"fraction {nearest / self.attention.head_dim:.6g} gives {nearest}",
            )
        for at, what, rows, columns in self._matrices():
            if rows * columns > INT32_MAX:
                wrong.add(at, f"{what} {rows} x {columns} has more than 2^31 - 1 elements")
        wrong.refuse()
        return self

    def _matrices(self) -> tuple[tuple[str, str, int, int], ...]:
        """Key to blame, name, rows and columns of each kind of weight matrix, merged as the passes merge them."""
        heads, size = self.attention, self.mlp.intermediate_size
        return (
            ("vocab_size", "the embedding table of vocab_size x hidden_size", self.vocab_size, self.hidden_size),
            (
                "attention.num_heads",
                "the merged query, key and value projection",
                (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim,
                self.hidden_size,
            ),
            ("mlp.intermediate_size", "the merged gate and up projection", 2 * size, self.hidden_size),
        )

    @property
    def rotary_dim(self) -> int:
        """Rotated elements of a head."""
        return round(self.attention.head_dim * self.rope.fraction)


def _divisors(value: int) -> str:
    return ", ".join(str(d) for d in range(1, value + 1) if value % d == 0)
