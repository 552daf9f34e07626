"""Attention of a decode step and the scan beside it: the functions of both."""

from mlxr.compiler.ir.ops.mixer_decode import MixerDecode, attention_ports, scan_ports
from mlxr.runtime.hosts.mlx_ops.attend import rope_write_attention
from mlxr.runtime.hosts.mlx_ops.ssd import conv_ssd
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs


@evaluates(MixerDecode)
def mixer_decode(inputs: Inputs, attrs: MixerDecode, arena: ArenaLayer | None = None) -> Outputs:
    """The results of attention, [seqs, heads * v_dim], and of the scan, [seqs, heads * head_dim]."""
    attended = rope_write_attention(attention_ports(inputs), attrs.attention, arena)
    return attended | {"scan_out": conv_ssd(scan_ports(inputs), attrs.scan, arena)["out"]}
