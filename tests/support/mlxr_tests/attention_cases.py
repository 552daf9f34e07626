"""Attention cases: a pairwise choice of GQA ratios, head dims, types, layouts, modes, blocks, windows and RoPEs."""

from dataclasses import dataclass
from typing import Any

from mlxr.compiler.artifact import ModelSpec
from mlxr_tests.specs import small_spec

_ROPES: dict[str, dict[str, Any] | None] = {
    "half": {},
    "interleaved": {"layout": "interleaved"},
    "half-of-it": {"fraction": 0.5},
    "interleaved-quarter": {"layout": "interleaved", "fraction": 0.25, "theta": 500.0},
    "linear": {"scaling": {"kind": "linear", "factor": 3.0}},
    "llama3": {"scaling": {"kind": "llama3", "factor": 8.0, "original_context": 64}},
    "yarn-half-of-it": {
        "fraction": 0.5,
        "scaling": {"kind": "yarn", "factor": 4.0, "original_context": 64, "attention_factor": 1.3},
    },
    "none": None,
}
_EXTRAS: dict[str, dict[str, Any]] = {
    "": {},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "temperature": {"temperature": {"beta": 0.4, "original_context": 16}},
    "chunks": {"chunked": True, "temperature": {"beta": 0.4, "original_context": 16, "first_position": 1}},
    "alibi": {"alibi": 8.0},
    "alibi-sinks": {"alibi": 4.0, "sinks": True},
    "gate": {"output_gate": {"scope": "head"}},
    "element-gate": {"output_gate": {"scope": "element", "activation": "softplus"}, "sinks": True},
    "norms": {"qk_norm": {"scope": "head", "values": True, "eps": 0.1}},
    "own-norms": {"qk_norm": {"scope": "heads", "eps": 0.1}},
    "keys-as-values": {"qk_norm": {"scope": "head", "weight": False}, "values_from_keys": True},
    "everything": {
        "softcap": 3.0,
        "sinks": True,
        "scale": 0.3,
        "temperature": {"beta": 0.4, "original_context": 16},
    },
}


@dataclass(frozen=True)
class Case:
    """One case; with `window` None, a query sees all keys before it."""

    heads: int
    kv_heads: int
    head_dim: int
    cache: str = "f32"
    activation: str = "f32"
    layout: str = "block"
    mode: str = "paged"
    block_size: int = 4
    window: int | None = None
    rope: str = "half"
    context: int = 170
    max_sequences: int = 3
    extras: str = ""
    v_dim: int | None = None

    def __str__(self) -> str:
        extras = f"-{self.extras}" if self.extras else ""
        extras += f"-values-of-{self.v_dim}" if self.v_dim else ""
        window = f"-window{self.window}" if self.window else ""
        return (
            f"{self.heads}on{self.kv_heads}x{self.head_dim}-{self.cache}in{self.activation}-{self.layout}-{self.mode}-"
            f"blocks{self.block_size}{window}-{self.rope}{extras}"
        )

    @property
    def spec(self) -> ModelSpec:
        """Its spec. It has three layers, so that a wrong layer stride in the arena shows."""
        attention = {"num_heads": self.heads, "num_kv_heads": self.kv_heads, "head_dim": self.head_dim}
        attention |= {"v_dim": self.v_dim}
        return small_spec(
            model__tensor_names="canonical" if self.extras else "llama",
            model__num_layers=3,
            model__context=self.context,
            model__attention=attention | {"sliding_window": self.window} | _EXTRAS[self.extras],
            model__rope=_ROPES[self.rope],
            cache={
                "layout": self.layout,
                "mode": self.mode,
                "dtype": self.cache,
                "block_size": self.block_size,
                "max_sequences": 1 if self.mode == "contiguous" else self.max_sequences,
            },
            activation_dtype=self.activation,
            prefill_chunk=64,
        )


CASES = [
    # Every GQA ratio and every head dim; the other properties spread over them.
    Case(4, 4, 32, "f32", "f32", "block", "paged", 4, None, "half"),
    Case(6, 3, 40, "bf16", "bf16", "layer", "paged", 1, None, "half-of-it"),
    Case(8, 2, 64, "f16", "f16", "block", "contiguous", 16, 5, "interleaved"),
    Case(14, 2, 80, "f32", "bf16", "layer", "contiguous", 32, None, "llama3"),
    Case(16, 2, 96, "f16", "f32", "block", "paged", 32, 17, "linear"),
    Case(8, 1, 128, "bf16", "f32", "layer", "paged", 16, 1, "half"),
    Case(4, 4, 256, "f32", "f32", "layer", "paged", 4, None, "interleaved-quarter"),
    Case(2, 1, 128, "f32", "f16", "block", "contiguous", 1, 300, "half"),
    Case(8, 2, 40, "f16", "f32", "layer", "paged", 4, 9, "interleaved"),
    Case(7, 1, 256, "bf16", "bf16", "block", "paged", 16, None, "linear"),
    Case(16, 2, 32, "bf16", "f16", "layer", "contiguous", 4, None, "interleaved-quarter"),
    Case(5, 5, 80, "f16", "bf16", "block", "paged", 16, 1, "half-of-it"),
    Case(4, 2, 64, "f32", "f32", "layer", "contiguous", 1, 4, "llama3"),
    Case(14, 2, 96, "bf16", "f32", "block", "contiguous", 16, 33, "half-of-it"),
    Case(8, 1, 256, "f32", "bf16", "block", "paged", 32, 16, "half"),
    Case(8, 2, 128, "f16", "bf16", "layer", "paged", 32, None, "llama3"),
    Case(7, 1, 64, "f16", "f16", "layer", "paged", 1, 8, "linear"),
    Case(16, 2, 80, "bf16", "bf16", "block", "contiguous", 4, 2, "interleaved"),
    Case(8, 1, 40, "f32", "f32", "block", "paged", 32, 31, "interleaved-quarter"),
    Case(4, 2, 96, "f32", "f16", "layer", "paged", 4, None, "half"),
    Case(14, 2, 32, "f16", "f32", "block", "paged", 16, None, "llama3"),
    Case(8, 2, 256, "bf16", "f16", "layer", "contiguous", 32, 40, "half"),
    Case(7, 7, 128, "f16", "bf16", "block", "paged", 4, 12, "interleaved"),
    # More query heads on a KV head than a prefill threadgroup holds.
    Case(40, 1, 32, "f32", "f32", "block", "paged", 4, None, "half"),
    Case(18, 2, 256, "f32", "f32", "layer", "paged", 16, 9, "half"),
    # Head dims of few power-of-two lanes, and an odd ratio.
    Case(6, 2, 56, "f32", "f32", "block", "paged", 4, None, "half"),
    Case(2, 2, 120, "bf16", "f32", "layer", "paged", 8, 19, "half"),
    Case(3, 1, 104, "f16", "f16", "block", "paged", 2, None, "interleaved"),
]

EXTRA_CASES = [
    # Capped scores, sinks, temperature, scaled rotations and no rotation, over ratios, windows and caches.
    Case(6, 3, 40, "bf16", "bf16", "layer", "paged", 4, None, "half", extras="softcap"),
    Case(8, 1, 64, "q8", "f32", "block", "paged", 16, 21, "none", extras="softcap"),
    Case(8, 2, 64, "f16", "f16", "block", "contiguous", 16, 5, "interleaved", extras="sinks"),
    Case(4, 4, 32, "q8", "bf16", "layer", "paged", 4, None, "yarn-half-of-it", extras="sinks"),
    Case(40, 1, 32, "f32", "f32", "block", "paged", 4, 33, "none", extras="sinks"),
    Case(18, 2, 256, "f32", "f32", "layer", "paged", 16, 9, "half", extras="sinks"),
    Case(14, 2, 80, "f32", "bf16", "layer", "contiguous", 32, None, "llama3", extras="temperature"),
    Case(4, 2, 128, "f16", "f32", "block", "paged", 8, 40, "linear", extras="temperature"),
    Case(8, 1, 256, "f32", "f32", "block", "paged", 32, 16, "half", extras="everything"),
    Case(6, 2, 56, "q8", "f16", "layer", "paged", 2, None, "interleaved", extras="everything"),
    Case(16, 2, 96, "f32", "f32", "block", "contiguous", 16, None, "yarn-half-of-it", extras="everything"),
    Case(6, 2, 64, "bf16", "bf16", "block", "paged", 16, 21, "none", extras="chunks"),
    Case(8, 2, 64, "bf16", "bf16", "block", "paged", 16, None, "half", extras="gate"),
    Case(6, 3, 40, "f32", "f32", "layer", "paged", 4, 21, "interleaved", extras="element-gate"),
    Case(6, 2, 56, "q8", "bf16", "layer", "contiguous", 8, None, "half", extras="element-gate"),
    Case(8, 2, 40, "f32", "f32", "layer", "contiguous", 4, 33, "interleaved", extras="chunks"),
    Case(6, 3, 40, "f32", "f32", "layer", "paged", 4, 33, "half-of-it", extras="norms"),
    Case(5, 5, 40, "f32", "f32", "layer", "paged", 4, None, "none", extras="alibi"),
    Case(40, 2, 64, "q8", "bf16", "block", "paged", 16, 33, "half", extras="alibi-sinks"),
    Case(8, 2, 64, "bf16", "bf16", "block", "contiguous", 16, None, "none", extras="alibi"),
    Case(18, 2, 256, "q8", "bf16", "block", "paged", 16, None, "interleaved", extras="own-norms"),
    Case(4, 2, 64, "f16", "f16", "block", "paged", 16, None, "none", extras="keys-as-values"),
    Case(6, 3, 56, "q8", "f32", "layer", "paged", 8, 64, "half", extras="chunks"),
    Case(5, 5, 80, "f16", "bf16", "block", "paged", 16, 1, "none"),
    Case(3, 1, 104, "f16", "f16", "layer", "paged", 2, None, "yarn-half-of-it"),
]

VALUE_CASES = [
    # Values longer and shorter than keys, over caches, layouts, ratios, windows and gates.
    Case(6, 2, 40, "f32", "f32", "block", "paged", 4, None, "half", v_dim=72),
    Case(8, 2, 192, "bf16", "bf16", "layer", "paged", 16, 21, "half-of-it", extras="sinks", v_dim=128),
    Case(8, 4, 64, "q8", "f32", "block", "paged", 8, None, "half", v_dim=128),
    Case(6, 3, 96, "q8", "bf16", "layer", "contiguous", 4, 33, "interleaved", v_dim=40),
    Case(12, 1, 64, "f16", "f16", "block", "contiguous", 1, 9, "none", extras="everything", v_dim=32),
    Case(6, 2, 128, "bf16", "f32", "layer", "paged", 16, None, "half", extras="element-gate", v_dim=256),
]

Q4_CASES = [
    # Keys in 8 and values in 6 bits, over ratios, sizes, layouts and what else changes where values come from or go.
    Case(14, 2, 64, "q4", "f32", "block", "paged", 4, None, "half"),
    Case(7, 1, 256, "q4", "bf16", "layer", "contiguous", 16, 33, "interleaved", extras="everything"),
    Case(12, 2, 96, "q4", "f32", "layer", "paged", 1, None, "half-of-it", extras="norms"),
    Case(3, 1, 32, "q4", "f16", "block", "paged", 2, 9, "none", extras="sinks"),
    Case(4, 2, 64, "q4", "bf16", "block", "paged", 16, None, "none", extras="keys-as-values"),
    Case(18, 2, 160, "q4", "f32", "layer", "paged", 16, None, "half", extras="alibi", v_dim=224),
    Case(6, 3, 96, "q4", "f32", "block", "paged", 8, 21, "half", extras="element-gate", v_dim=64),
]

NOT_FOR_MATRICES = [
    # Types and heads that MMA attention does not take.
    Case(8, 2, 64, "f32", "bf16", "layer", "paged", 16, None, "half"),
    Case(8, 2, 64, "q8", "bf16", "layer", "paged", 16, None, "half"),
    Case(8, 2, 64, "q4", "bf16", "layer", "paged", 16, None, "half"),
    Case(8, 2, 96, "bf16", "bf16", "layer", "paged", 16, None, "half"),
    Case(8, 2, 64, "bf16", "bf16", "layer", "paged", 16, None, "half", v_dim=128),
]
