"""Heads, sequences and states of the gated delta rule, and what it makes of them in double precision."""

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np

from mlxr.compiler.ir.ops.gated_delta import DeltaHeads, GatedDelta
from mlxr.compiler.spec.model import ModelSpec
from mlxr.runtime.hosts.mlx_ops import evaluate
from mlxr_tests.specs import floats, random_array, small_spec

LAYERS, LAYER, SLOTS = 3, 1, 9
HEADS: dict[str, tuple[int, int, int, int, bool, bool]] = {
    "values as wide as keys": (3, 3, 32, 32, False, False),
    "several values to a key": (6, 2, 24, 40, False, False),
    "tiled": (4, 2, 40, 16, True, False),
    "by channels": (2, 2, 48, 24, False, True),
    "large": (2, 1, 128, 128, False, False),
    "odd": (3, 1, 20, 12, False, True),
}
LENGTHS = (1, 70, 3, 2)
ZERO = 5
"""Tokens of the sequences: of one, of more than a chunk of 64, and of few; a token whose query and key are 0."""
TABLE = ((0, 4, -1, -1), (1, 5, 6, -1), (-1, -1, 7, 8), (0, 2, -1, 3))
"""Reads slot 0 twice and zeros once; the states after the last tokens go to others, or nowhere."""


@dataclass(frozen=True)
class DeltaCase:
    """Heads with their inputs, by the ports of the op."""

    heads: GatedDelta
    inputs: dict[str, mx.array]
    lengths: tuple[int, ...] = LENGTHS
    table: tuple[tuple[int, ...], ...] = TABLE

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(self.lengths)

    def reference(self) -> tuple[np.ndarray, np.ndarray]:
        """The result and the states, by the reference."""
        inputs = self.inputs | {"states": mx.array(np.array(self.inputs["states"]))}
        mx.eval(inputs["states"])
        out = evaluate(self.heads, inputs, _Layer())["out"]  # type: ignore[arg-type]  # all that it asks of it
        return floats(out), np.array(inputs["states"])


class _Layer:
    """Stands for the place of the layer in an arena."""

    class arena:  # noqa: N801
        token = mx.array(0)

    @staticmethod
    def place(port: str) -> int:
        """The number of the layer in the store."""
        return LAYER


def delta_case(name: str, dtype: str = "f32", seed: int = 0) -> DeltaCase:
    """A case of these heads; see `case_of`."""
    return case_of(GatedDelta(*HEADS[name]), dtype, seed)


def case_of(
    heads: GatedDelta,
    dtype: str = "f32",
    seed: int = 0,
    lengths: tuple[int, ...] = LENGTHS,
    table: tuple[tuple[int, ...], ...] = TABLE,
) -> DeltaCase:
    """A case; decays and betas are columns of one value, where the decays come last. One query and its key are 0."""
    firsts = {"q_first": 0, "k_first": heads.keys, "v_first": 2 * heads.keys}
    first = -(-heads.num_heads // 4) * 4
    heads = replace(heads, decay_first=first + 4, beta_first=4, **firsts)
    rng, tokens = np.random.default_rng(seed), sum(lengths)
    numbers = random_array(rng, (tokens, first + 4 + -(-heads.decays // 4) * 4), dtype)
    parts = random_array(rng, (tokens, 2 * heads.keys + heads.width), dtype)
    parts[ZERO : ZERO + 1, : 2 * heads.keys] = 0
    inputs: dict[str, Any] = {
        **dict.fromkeys("qkv", parts),
        "a": numbers,
        "b": numbers,
        "rate": mx.array(-rng.uniform(0.01, 16, heads.num_heads).astype(np.float32)),
        "dt_bias": mx.array(rng.normal(-3, 2, heads.decays).astype(np.float32)),
        "query_start": mx.array(np.cumsum([0, *lengths]).astype(np.int32)),
        "state_table": mx.array(np.array(table, np.int32)),
        "states": random_array(rng, (SLOTS, LAYERS, heads.num_heads, heads.key_dim, heads.value_dim), "f32"),
    }
    return DeltaCase(heads, inputs, lengths, table)


def by_formula(case: DeltaCase) -> tuple[np.ndarray, np.ndarray]:
    """The result and the states, as transformers' `torch_recurrent_gated_delta_rule` says, in double precision."""
    h: DeltaHeads = case.heads
    x, a, b, rate, dt_bias, states = (
        floats(case.inputs[port]).astype(np.float64) for port in ("q", "a", "b", "rate", "dt_bias", "states")
    )
    keys = h.keys
    out, start = np.zeros((case.tokens, h.num_heads, h.value_dim)), 0
    for length, (read, *write) in zip(case.lengths, case.table, strict=True):
        for head in range(h.num_heads):
            of_key = head % h.num_key_heads if h.tiled else head // (h.num_heads // h.num_key_heads)
            state = states[read, LAYER, head].copy() if read >= 0 else np.zeros((h.key_dim, h.value_dim))
            for t in range(start, start + length):
                q, k = (x[t, first + of_key * h.key_dim :][: h.key_dim] for first in (0, keys))
                q, k = (part / np.sqrt((part * part).sum() + 1e-6) for part in (q, k))
                v = x[t, 2 * keys + head * h.value_dim :][: h.value_dim]
                own = slice(head * h.key_dim, (head + 1) * h.key_dim) if h.per_channel else slice(head, head + 1)
                softplus = np.logaddexp(a[t, h.decay_first :][own] + dt_bias[own], 0)
                state = state * np.exp(rate[head] * softplus)[:, None]
                beta = 1 / (1 + np.exp(-b[t, h.beta_first + head]))
                state = state + np.outer(k, (v - state.T @ k) * beta)
                out[t, head] = state.T @ q / np.sqrt(h.key_dim)
                left = start + length - t
                if left <= len(write) and write[left - 1] >= 0:
                    states[write[left - 1], LAYER, head] = state
        start += length
    return out.reshape(case.tokens, -1), states


def delta_spec(*, of_model: dict[str, Any] | None = None, **changes: Any) -> ModelSpec:
    """A layer with a gated delta net, and one with attention."""
    sizes = {"num_heads": 4, "num_key_heads": 2, "key_dim": 24, "value_dim": 40, "taps": 3}
    types = {"delta": {"blocks": ["recurrent", "mlp"]}, "full": {}}
    named = {"model__layer_types": types, "model__layer_pattern": ["delta", "full"], "model__tensor_names": "canonical"}
    return small_spec(**{"model__recurrent": {"kind": "delta", **sizes, **changes}, **named, **(of_model or {})})
