"""The kernels of the toy target: NumPy functions of the batch `b`, the layer, and the buffers that they read.

`b` has token_ids, positions and rows [int], and the arenas k and v [layers, context, kv_heads, head_dim].
"""

from dataclasses import dataclass
from typing import ClassVar

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.ops.attention import PackedAttention
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.schedule.kernel import Kernel, Port


@dataclass(frozen=True)
class ToyKernel(Kernel):
    """A function: its body, and the ports that are its parameters and results."""

    template: ClassVar[str] = "def {name}(b, layer{parameters}):\n{body}    return ({results})\n"
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    body: str

    @property
    def inputs(self) -> tuple[Port, ...]:
        return tuple((port, DType.F32) for port in self.reads)

    @property
    def outputs(self) -> tuple[Port, ...]:
        return tuple((port, DType.F32) for port in self.writes)

    def text(self, name: str) -> str:
        parameters, results = ("".join(f"{sep}{port}" for port in ports) for sep, ports in self._ports())
        body = "".join(f"    {line}\n" for line in self.body.splitlines())
        return "import numpy as np\n\n\n" + self.template.format(
            name=name, parameters=parameters, body=body, results=results
        )

    def _ports(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (", ", self.reads), ("", tuple(f"{port}, " for port in self.writes))


def embed(scale: float) -> ToyKernel:
    return ToyKernel("embed", ("table",), ("out",), f"out = table[b.token_ids] * {scale}")


def product(op: Product, bound: dict[str, str]) -> ToyKernel:
    """x @ weight.T with the ops that the passes fused into it; only RMS norms and gated SiLU."""
    norm, finish = op.norm, op.finish
    assert finish.activation in (None, "silu") and finish.gated == (finish.activation is not None)
    lines = ["x = x[b.rows]"] if "rows" in bound else []
    if norm is not None:
        assert norm.kind == "rms"
        lines.append(f"x = x / np.sqrt((x * x).mean(-1, keepdims=True) + {norm.eps}) * norm")
    lines.append("out = x @ weight.T")
    if finish.gated:
        lines += ["gate, up = np.split(out, 2, axis=-1)", "out = gate / (1 + np.exp(-gate)) * up"]
    lines.append(f"out = {'residual + ' if 'residual' in bound else ''}{finish.residual_scale} * out")
    reads = tuple(port for port in ("x", "weight", "norm", "residual") if port in bound)
    return ToyKernel("product", reads, ("out",), "\n".join(lines))


def cache_write(op: PackedHeads, frequencies: tuple[float, ...]) -> ToyKernel:
    """Rotates keys, and stores keys and values at their positions."""
    lines = [_split(op), *_rotated("k", op, frequencies), "b.k[layer, b.positions] = k", "b.v[layer, b.positions] = v"]
    return ToyKernel("cache_write", ("qkv",), (), "\n".join(lines))


def attend(op: PackedAttention, frequencies: tuple[float, ...]) -> ToyKernel:
    """Attention of the new tokens to all tokens up to and including themselves."""
    assert op.window is None and op.softcap is None and op.temperature is None
    lines = [_split(op), *_rotated("q", op, frequencies)]
    lines += [
        f"k, v = (np.repeat(a[layer], {op.num_heads // op.num_kv_heads}, axis=1) for a in (b.k, b.v))",
        f"scores = np.einsum('thd,chd->htc', q, k) * {op.scale}",
        "unseen = np.arange(k.shape[0]) > b.positions[:, None]",
        "scores = np.where(unseen, -np.inf, scores)",
        "p = np.exp(scores - scores.max(-1, keepdims=True))",
        "out = np.einsum('htc,chd->thd', p / p.sum(-1, keepdims=True), v).reshape(len(q), -1)",
    ]
    return ToyKernel("attend", ("qkv",), ("out",), "\n".join(lines))


def _split(op: PackedHeads) -> str:
    first, second = op.num_heads, op.num_heads + op.num_kv_heads
    return f"q, k, v = np.split(qkv.reshape(len(qkv), -1, {op.head_dim}), [{first}, {second}], axis=1)"


def _rotated(name: str, op: PackedHeads, frequencies: tuple[float, ...]) -> list[str]:
    assert op.rope_layout == "half" and op.rotary_dim == op.head_dim
    return [
        f"angles = b.positions[:, None, None] * np.array({list(frequencies)})",
        f"cos, sin = np.cos(angles) * {op.rope_scale}, np.sin(angles) * {op.rope_scale}",
        f"first, second = np.split({name}, 2, axis=-1)",
        f"{name} = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)",
    ]
