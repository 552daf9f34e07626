"""What is measured: model shapes, weight formats, and the rows of engines, with their bytes and operations."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from peers.models import Shape

from gpu.user_rows import UserRow, user_rows_of

Kind = Literal["decode", "prefill", "first-token"]
GROWTH = 256
"""Tokens by which a decoding sequence may grow before it starts again."""
FORMATS = {"bf16": "bf16", "affine4": "affine4_g64_bf16", "q4_k": "q4_k"}
"""Formats by their names here, with their names in specs."""
BITS = {"bf16": 16.0, "affine4": 4.5, "q4_k": 4.5}
"""Bits of a weight, scales included."""


@dataclass(frozen=True)
class GpuModel:
    """A shape, and how long its contexts are here; `context` of the shape itself is not used.

    Attributes:
        theta: base of RoPE.
        short, long: tokens before the first measured step, in ordinary decode rows and in the row of a long context.
        batches: numbers of sequences that decode together.
        prompts: lengths of prompts.
    """

    shape: Shape
    theta: float
    short: int
    long: int
    batches: tuple[int, ...]
    prompts: tuple[int, ...]


MODELS = {
    "tinyllama": GpuModel(Shape("tinyllama", 2048, 22, 32, 4, 5632, 32000, 0), 1e4, 512, 0, (16, 64), (512, 4096)),
    "llama-3-8b": GpuModel(
        Shape("llama-3-8b", 4096, 32, 32, 8, 14336, 128256, 0), 5e5, 512, 32000, (16, 64), (512, 4096)
    ),
    "toy": GpuModel(Shape("toy", 256, 3, 8, 2, 512, 384, 0), 1e4, 24, 1100, (3,), (40,)),
}
"""`toy` shows that the benchmark works where there is no GPU; its figures say nothing."""


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        tokens: for `decode`, tokens in the cache before the first step; for the others, those of the prompt.
        batch: sequences.
    """

    model: str
    format: str
    kind: Kind
    tokens: int
    batch: int = 1

    @property
    def id(self) -> str:
        """Its name: model/format/work."""
        work = f"batch-{self.batch}" if self.batch > 1 else f"{self.kind}-{self.tokens}"
        return f"{self.model}/{self.format}/{'first-token' if self.kind == 'first-token' else work}"

    @property
    def process(self) -> str:
        """The name of the process that measures the row; rows of the same name share it."""
        return f"{self.model} {self.format}" + (" loading" if self.kind == "first-token" else "")

    @property
    def title(self) -> str:
        """What is done, in words."""
        if self.kind == "first-token":
            return "load to first token"
        if self.kind == "prefill":
            return f"prefill {self.tokens}"
        return f"decode after {self.tokens}" + (f", batch {self.batch}" if self.batch > 1 else "")

    @property
    def tokens_per_turn(self) -> int:
        """Tokens read or made in one step or prompt."""
        return self.tokens if self.kind == "prefill" else self.batch

    @property
    def context(self) -> int:
        """Most tokens of a sequence, with room for those that are decoded, also while others' prompts are read."""
        return -(-(self.tokens + GROWTH + 32 + self.batch) // 16) * 16

    @property
    def size_bytes(self) -> int:
        """The fewest bytes through memory: each weight once, the cache that a step reads, and what it writes there."""
        shape, dims = MODELS[self.model].shape, _Dims(MODELS[self.model].shape)
        weights = int((dims.layer * shape.layers + dims.output) * BITS[self.format] / 8)
        row = int(shape.hidden * BITS[self.format] / 8)
        of_token = 2 * 2 * shape.layers * shape.kv_heads * shape.head_dim
        if self.kind == "decode":
            return weights + self.batch * (row + of_token * (self.tokens + GROWTH // 2))
        return weights + self.tokens * (row + of_token)

    @property
    def operations(self) -> int:
        """Floating-point operations; a multiplication and an addition are two."""
        shape, dims = MODELS[self.model].shape, _Dims(MODELS[self.model].shape)
        of_pair = 4 * shape.layers * shape.heads * shape.head_dim
        if self.kind == "decode":
            pairs = self.batch * (self.tokens + GROWTH // 2)
            return 2 * self.batch * (dims.layer * shape.layers + dims.output) + of_pair * pairs
        pairs = self.tokens * (self.tokens + 1) // 2
        return 2 * self.tokens * dims.layer * shape.layers + 2 * dims.output + of_pair * pairs

    def floor_seconds(self, bytes_per_second: float, operations_per_second: float) -> float:
        """The time below which no version runs, by the larger of its two numbers."""
        return max(self.size_bytes / bytes_per_second, self.operations / operations_per_second)


class _Dims:
    """Weights of a layer's matrices, and of the output projection."""

    def __init__(self, shape: Shape) -> None:
        kv = shape.kv_heads * shape.head_dim
        self.layer = shape.hidden * (2 * shape.hidden + 2 * kv + 3 * shape.intermediate)
        self.output = shape.hidden * shape.vocab


def rows_of(model: str) -> list[Row]:
    """Every row of a model, in the order of the table."""
    gpu = MODELS[model]
    rows = []
    for name in FORMATS:
        rows.append(Row(model, name, "decode", gpu.short))
        if name == "bf16":
            rows += [Row(model, name, "decode", gpu.short, batch) for batch in gpu.batches]
            rows += [Row(model, name, "decode", gpu.long)] if gpu.long else []
        rows += [Row(model, name, "prefill", tokens) for tokens in gpu.prompts]
        if name == "bf16" and model in ("llama-3-8b", "toy"):
            rows.append(Row(model, name, "first-token", 5))
    return rows


def chosen_rows(only: str, models: tuple[str, ...] = ("tinyllama", "llama-3-8b")) -> list[Row | UserRow]:
    """The rows that a list of patterns names, such as `llama-3-8b/*/decode-512,*/user-*`; empty: all.

    Raises:
        SystemExit: a pattern matches no row.
    """
    rows = [row for model in models for row in (*rows_of(model), *user_rows_of(model))]
    patterns = [pattern for pattern in only.split(",") if pattern]
    for pattern in patterns:
        if not any(fnmatchcase(row.id, pattern) for row in rows):
            raise SystemExit(f"--only {pattern} is no row; there are:\n  " + "\n  ".join(row.id for row in rows))
    return [row for row in rows if not patterns or any(fnmatchcase(row.id, pattern) for pattern in patterns)]


def spec_document(
    row: Row, *, layers: int = 0, paged: bool = False, exact: bool = False, chunk: int = 0
) -> dict[str, Any]:
    """The spec that a row is measured with.

    Args:
        row: the row.
        layers: how many layers; 0: all.
        paged: whether one sequence has a block table too.
        exact: whether everything is f32, for the reference.
        chunk: most tokens of a step; 0: 2048, which is mlx-lm's own.
    """
    gpu = MODELS[row.model]
    shape = gpu.shape
    return {
        "name": row.id.replace("/", "-"),
        "model": {
            "vocab_size": shape.vocab,
            "hidden_size": shape.hidden,
            "num_layers": layers or shape.layers,
            "context": row.context,
            "norm": {"kind": "rms", "eps": 1e-5},
            "rope": {"theta": gpu.theta},
            "attention": {"num_heads": shape.heads, "num_kv_heads": shape.kv_heads, "head_dim": shape.head_dim},
            "mlp": {"intermediate_size": shape.intermediate, "activation": "silu"},
        },
        "cache": {
            "mode": "paged" if paged or row.batch > 1 else "contiguous",
            "dtype": "f32" if exact else "bf16",
            "max_sequences": row.batch,
        },
        "activation_dtype": "f32" if exact else "bf16",
        "weights": {"default": "f32" if exact else FORMATS[row.format]},
        "prefill_chunk": chunk or 2048,
    }


def mlx_lm_config(model: str, context: int) -> dict[str, Any]:
    """The model's config.json."""
    gpu = MODELS[model]
    shape = gpu.shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": context,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": gpu.theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab,
    }
