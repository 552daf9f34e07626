"""Short convolutions with random numbers, for the tests of the kernels and of the reference."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.ir.ops.causal_conv import CausalConv, GatedConv
from mlxr.runtime.hosts.mlx_ops.causal_conv import causal_conv, gated_conv

Floats = npt.NDArray[np.float32]
LAYERS, LAYER, SLOTS = 3, 1, 16

SHAPES: dict[str, tuple[CausalConv | GatedConv, int, bool]] = {
    "plain": (CausalConv(4), 72, False),
    "activated, of some columns, with a bias": (CausalConv(3, "silu", 8), 40, True),
    "gated": (GatedConv(3), 136, False),
    "gated, with a bias": (GatedConv(2), 24, True),
}
"""Kinds of convolutions, their channels, and whether each has a bias."""


@dataclass(frozen=True)
class ConvCase:
    """A batch of sequences for one convolution.

    Attributes:
        attrs: the op.
        inputs: x, weight and bias.
        query_start, state_table: the sequences; see `Batch`.
        states: [slots, layers, channels, taps - 1].
    """

    attrs: CausalConv | GatedConv
    inputs: dict[str, Floats]
    query_start: npt.NDArray[np.int32]
    state_table: npt.NDArray[np.int32]
    states: Floats

    @property
    def channels(self) -> int:
        """Filters."""
        return int(self.inputs["weight"].size) // self.attrs.taps

    def reference(self) -> tuple[Floats, Floats]:
        """The results, and the states after the batch, as the reference has them."""
        states = mx.array(self.states)
        tables = {"query_start": mx.array(self.query_start), "state_table": mx.array(self.state_table)}
        inputs = {port: mx.array(value) for port, value in self.inputs.items()} | tables | {"conv_states": states}
        place: Any = SimpleNamespace(place=lambda port: LAYER)
        if isinstance(self.attrs, GatedConv):
            out = gated_conv(inputs, self.attrs, place)["out"]
        else:
            out = causal_conv(inputs, self.attrs, place)["out"]
        return np.array(out), np.array(states)

    def formula(self) -> tuple[Floats, Floats]:
        """The same in f64, token by token."""
        taps, channels = self.attrs.taps, self.channels
        x, weight = (self.inputs[port].astype(np.float64) for port in ("x", "weight"))
        weight, gated = weight.reshape(channels, taps), isinstance(self.attrs, GatedConv)
        states, out = self.states.astype(np.float64), np.zeros((len(x), channels))
        for row, begin, end in zip(self.state_table, self.query_start, self.query_start[1:], strict=False):
            window = np.zeros((channels, taps - 1)) if row[0] < 0 else states[row[0], LAYER].copy()
            for t in range(begin, end):
                if isinstance(self.attrs, CausalConv):
                    value = x[t, self.attrs.first :][:channels]
                else:
                    value = x[t, :channels] * x[t, 2 * channels :]
                window = np.concatenate([window, value[:, None]], axis=1)
                y = (window * weight).sum(axis=1) + self.inputs.get("bias", 0)
                out[t] = y * x[t, channels : 2 * channels] if gated else y
                window = window[:, 1:]
                if end - t < len(row) and row[end - t] >= 0:
                    states[row[end - t], LAYER] = window
        if isinstance(self.attrs, CausalConv) and self.attrs.activation == "silu":
            out = out / (1 + np.exp(-out))
        return out.astype(np.float32), states.astype(np.float32)

    def part(self, begin: int, end: int, slots: tuple[int, int], states: Floats) -> "ConvCase":
        """Some tokens of a batch of one sequence, which reads one slot and writes another."""
        inputs = self.inputs | {"x": self.inputs["x"][begin:end]}
        start, table = np.array([0, end - begin], np.int32), np.array([slots], np.int32)
        return replace(self, inputs=inputs, query_start=start, state_table=table, states=states)


def conv_case(shape: str, counts: tuple[int, ...], columns: int = 2, seed: int = 0) -> ConvCase:
    """A batch in which sequences have so many tokens each; the first one begins from nothing.

    Args:
        shape: of `SHAPES`.
        counts: tokens of each sequence.
        columns: of the table of states.
        seed: of the numbers.
    """
    rng, (attrs, channels, has_bias) = np.random.default_rng(seed), SHAPES[shape]
    width = attrs.first + channels + 4 if isinstance(attrs, CausalConv) else 3 * channels

    def normal(*sizes: int) -> Floats:
        return rng.standard_normal(sizes).astype(np.float32)

    inputs = {"x": normal(sum(counts), width), "weight": normal(channels * attrs.taps)}
    inputs |= {"bias": normal(channels)} if has_bias else {}
    slots = rng.permutation(SLOTS)
    table = np.full((len(counts), columns), -1, np.int32)
    table.flat[: min(table.size, SLOTS)] = slots[: table.size]
    table[0, 0] = -1
    states = normal(SLOTS, LAYERS, channels, attrs.taps - 1)
    return ConvCase(attrs, inputs, np.cumsum([0, *counts]).astype(np.int32), table, states)
