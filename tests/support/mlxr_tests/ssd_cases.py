"""Scans of Mamba-2 with random numbers, for the tests of the kernels and of the reference."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.ir.ops.mamba2 import ConvSsd
from mlxr.compiler.ir.ops.ssd import Ssd
from mlxr.runtime.hosts.mlx_ops.ssd import conv_ssd, ssd

Floats = npt.NDArray[np.float32]
LAYERS, LAYER, SLOTS = 3, 1, 12

SHAPES: dict[str, tuple[Ssd, bool]] = {
    "groups": (Ssd(6, 16, 3, 32, 0.0, None), False),
    "uneven": (Ssd(4, 36, 2, 12, 0.001, 0.1), True),
    "one group": (Ssd(3, 64, 1, 128, 0.0, None), True),
    "wide": (Ssd(2, 40, 2, 256, 0.001, None), False),
    "small": (Ssd(5, 4, 1, 4, 0.0, 0.5), True),
}
"""Kinds of scans, and whether each has a gate."""


@dataclass(frozen=True)
class SsdCase:
    """A batch of sequences for one scan.

    Attributes:
        attrs: the op.
        inputs: its inputs of tokens and heads, by port.
        query_start, state_table: the sequences; see `Batch`.
        states: [slots, layers, heads, head_dim, state_dim].
        conv_states: [slots, layers, channels, taps - 1], of a scan with its convolution.
    """

    attrs: Ssd | ConvSsd
    inputs: dict[str, Floats]
    query_start: npt.NDArray[np.int32]
    state_table: npt.NDArray[np.int32]
    states: Floats
    conv_states: Floats | None = None

    def reference(self) -> tuple[Floats, ...]:
        """The results, and the states after the batch, as the reference has them."""
        stores = {"states": mx.array(self.states)}
        if self.conv_states is not None:
            stores["conv_states"] = mx.array(self.conv_states)
        tables = {"query_start": mx.array(self.query_start), "state_table": mx.array(self.state_table)}
        inputs = {port: mx.array(value) for port, value in self.inputs.items()} | tables | stores
        place: Any = SimpleNamespace(place=lambda port: LAYER)
        attrs = self.attrs
        out = (ssd(inputs, attrs, place) if isinstance(attrs, Ssd) else conv_ssd(inputs, attrs, place))["out"]
        return np.array(out), *(np.array(store) for store in stores.values())

    def formula(self) -> tuple[Floats, Floats]:
        """The same in f64, written from the formula, head by head and element by element of B."""
        k = self.attrs
        assert isinstance(k, Ssd), "of x, B and C"
        of = {port: value.astype(np.float64) for port, value in self.inputs.items()}
        states, out = self.states.astype(np.float64), np.zeros((len(of["x"]), k.num_heads, k.head_dim))
        for row, begin, end in zip(self.state_table, self.query_start, self.query_start[1:], strict=False):
            for h in range(k.num_heads):
                group = h // (k.num_heads // k.num_groups)
                state = np.zeros((k.head_dim, k.state_dim)) if row[0] < 0 else states[row[0], LAYER, h].copy()
                for t in range(begin, end):
                    x = of["x"][t, k.x_first + h * k.head_dim :][: k.head_dim]
                    b = of["b"][t, k.b_first + group * k.state_dim :][: k.state_dim]
                    c = of["c"][t, k.c_first + group * k.state_dim :][: k.state_dim]
                    dt = np.log1p(np.exp(of["dt"][t, k.dt_first + h] + of["dt_bias"][h]))
                    dt = max(dt, k.least) if k.most is None else min(max(dt, k.least), k.most)
                    state = np.exp(of["a"][h] * dt) * state + dt * np.outer(x, b)
                    out[t, h] = state @ c + of["d"][h] * x
                    if "gate" in of:
                        gate = of["gate"][t, k.gate_first + h * k.head_dim :][: k.head_dim]
                        out[t, h] *= gate / (1 + np.exp(-gate))
                    if end - t < len(row) and row[end - t] >= 0:
                        states[row[end - t], LAYER, h] = state
        return out.reshape(len(out), -1).astype(np.float32), states.astype(np.float32)


def ssd_case(shape: str, counts: tuple[int, ...], columns: int = 2, joined: bool = False, seed: int = 0) -> SsdCase:
    """A batch in which sequences have so many tokens each; the first one begins from nothing.

    Args:
        shape: of `SHAPES`.
        counts: tokens of each sequence.
        columns: of the table of states.
        joined: whether all columns of tokens are those of one value, between others.
        seed: of the numbers.
    """
    rng, (kind, has_gate) = np.random.default_rng(seed), SHAPES[shape]
    tokens, heads = sum(counts), kind.num_heads
    ports = ["x", "b", "c", "dt", *(["gate"] if has_gate else [])]

    def normal(*sizes: int) -> Floats:
        return rng.standard_normal(sizes).astype(np.float32)

    if joined:
        firsts, width = {}, 4
        for port in ports:
            firsts[f"{port}_first"], width = width, width + kind.columns[port][1] + 4
        attrs = Ssd(**{**kind.attributes, **firsts})
        value = normal(tokens, width)
        inputs = dict.fromkeys(ports, value)
    else:
        attrs, inputs = kind, {port: normal(tokens, kind.columns[port][1]) for port in ports}
    inputs |= {"a": -np.exp(normal(heads)), "d": normal(heads), "dt_bias": normal(heads) * 2 - 3}
    inputs["dt_bias"][0] = -9  # less than any lower limit
    slots = rng.permutation(SLOTS)
    table = np.full((len(counts), columns), -1, np.int32)
    table.flat[: min(table.size, SLOTS)] = slots[: table.size]
    table[0, 0] = -1
    states = normal(SLOTS, LAYERS, heads, kind.head_dim, kind.state_dim)
    start = np.cumsum([0, *counts]).astype(np.int32)
    return SsdCase(attrs, inputs, start, table, states)


def conv_case(shape: str, sequences: int, taps: int = 4, bias: bool = True) -> SsdCase:
    """The next token of sequences, of which the first one begins from nothing, with the convolution before the scan."""
    rng, scan = np.random.default_rng(1), ssd_case(shape, (1,) * sequences, joined=True)
    kind = scan.attrs
    sizes = {name: value for name, value in kind.attributes.items() if name not in ("b_first", "c_first")}
    attrs = ConvSsd(**sizes, taps=taps)
    channels = attrs.channels
    inputs = {port: value for port, value in scan.inputs.items() if port not in ("b", "c")}
    inputs["weight"] = rng.standard_normal(channels * taps).astype(np.float32)
    if bias:
        inputs["bias"] = rng.standard_normal(channels).astype(np.float32)
    kept = rng.standard_normal((SLOTS, LAYERS, channels, taps - 1)).astype(np.float32)
    x = rng.standard_normal((sequences, channels + 8)).astype(np.float32)
    attrs = replace(attrs, x_first=4)
    return SsdCase(attrs, inputs | {"x": x}, scan.query_start, scan.state_table, scan.states, kept)


def conv_formula(case: SsdCase) -> Floats:
    """The results in f64: the convolution from its formula, and the scan from `SsdCase.formula`."""
    assert isinstance(case.attrs, ConvSsd)
    k, weight = case.attrs, case.inputs["weight"].astype(np.float64).reshape(-1, case.attrs.taps)
    assert case.conv_states is not None
    x = case.inputs["x"][:, k.x_first : k.x_first + k.channels].astype(np.float64)
    y = np.zeros_like(x) + case.inputs.get("bias", np.zeros(k.channels, np.float32))
    for i, row in enumerate(case.state_table):
        for j in range(weight.shape[1]):
            past = case.conv_states[row[0], LAYER, :, j] if j < weight.shape[1] - 1 and row[0] >= 0 else 0.0
            y[i] += weight[:, j] * (x[i] if j == weight.shape[1] - 1 else past)
    y = (y / (1 + np.exp(-y))).astype(np.float32)
    parts = dict(zip("xbc", np.split(y, [k.width, k.width + k.shared_width], axis=1), strict=True))
    attrs = Ssd(**{name: value for name, value in k.attributes.items() if name != "taps"} | {"x_first": 0})
    inputs = {port: value for port, value in case.inputs.items() if port not in ("weight", "bias")} | parts
    return replace(case, attrs=attrs, inputs=inputs, conv_states=None).formula()[0]
