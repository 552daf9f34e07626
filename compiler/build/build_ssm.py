"""The Mamba-2 block of the source graph."""

from mlxr.compiler.build.builder import Builder
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.division import Axis
from mlxr.compiler.ir.ops.gated_norm import GatedNorm
from mlxr.compiler.ir.ops.mamba2 import Mamba2
from mlxr.compiler.ir.tensor import layer_prefix
from mlxr.compiler.spec.recurrent import Ssm


def build_ssm(b: Builder, index: int, ssm: Ssm, x: str) -> str:
    """Adds the projections, the convolution with its scan, the norm, and the last projection."""
    prefix, hidden = f"{layer_prefix(index)}recurrent", b.spec.model.hidden_size
    units = ssm.units

    def axis(count: int) -> Axis:
        return Axis("units", units, count // units)

    inner, heads = axis(ssm.inner), axis(ssm.num_heads)
    shared = None if ssm.conv_whole else axis(ssm.shared_width)
    widths = {
        "z": (ssm.inner, inner),
        "x": (ssm.inner, inner),
        "b": (ssm.shared_width, shared),
        "c": (ssm.shared_width, shared),
        "step": (ssm.num_heads, heads),
    }
    parts = {
        role: b.linear(f"{prefix}.{role}", x, (width, hidden), f"{prefix}.{role}_bias" if ssm.bias else None, rows=rows)
        for role, (width, rows) in widths.items()
    }
    inputs = {"x": parts["x"], "b": parts["b"], "c": parts["c"], "dt": parts["step"]}
    for role in ("x", "b", "c"):
        width, rows = widths[role]
        taps = None if rows is None else Axis(rows.of, rows.count, rows.size * ssm.taps)
        inputs[f"{role}_conv"] = b.parameter(f"{prefix}.{role}_conv", width * ssm.taps, taps)
        if ssm.conv_bias:
            inputs[f"{role}_conv_bias"] = b.parameter(f"{prefix}.{role}_conv_bias", width, rows)
    inputs |= {role: b.parameter(f"{prefix}.{role}", ssm.num_heads, heads) for role in ("a", "d", "dt_bias")}
    inputs |= b.states(index, CONV_STATES, STATES)
    if not ssm.norm_before_gate:
        inputs["gate"] = parts["z"]
    kind = Mamba2(
        num_heads=ssm.num_heads,
        head_dim=ssm.head_dim,
        num_groups=ssm.num_groups,
        state_dim=ssm.state_dim,
        least=ssm.least_step,
        most=ssm.most_step,
        taps=ssm.taps,
    )
    y = b.op(kind, f"{prefix}.scanned", inputs)
    if ssm.norm_before_gate:
        norm = GatedNorm(ssm.num_groups, b.spec.model.norm.eps, "silu", gate_first=False, first=0)
        weight = b.vector(f"{prefix}.o_norm", ssm.inner, inner)
        y = b.op(norm, f"{prefix}.o_normed", {"x": y, "gate": parts["z"], "weight": weight})
    elif ssm.norm:
        name, out = f"{prefix}.o_norm", f"{prefix}.o_normed"
        y = b.norm(name, out, y, ssm.inner, groups=ssm.num_groups, kind="rms", weight=True, bias=False, axis=inner)
    bias = f"{prefix}.o_bias" if ssm.output_bias else None
    return b.linear(f"{prefix}.o", y, (hidden, ssm.inner), bias, columns=inner)
