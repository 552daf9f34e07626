"""Attention and the Mamba-2 block beside it in a decode step: all of both between their projections."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, TypeVar

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import FUSED_STAGES
from mlxr.compiler.ir.ops.attention import PackedAttention, RopeWriteAttention
from mlxr.compiler.ir.ops.mamba2 import ConvSsd
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use

T = TypeVar("T")
_SCAN = "scan_"
_SHARED = ("query_start", "state_table", *ConvSsd.accesses)
"""Ports of the scan that attention does not have, whose names stay."""
_PORTS = {port: port if port in _SHARED else f"{_SCAN}{port}" for port in (*ConvSsd.inputs, *ConvSsd.optional)}
_PORTS["token"] = "token"
"""The ports of the scan, and what they are here."""


@dataclass(frozen=True)
class MixerDecode(PackedAttention):
    """`RopeWriteAttention` and `ConvSsd`, which do not read each other's results.

    Attributes:
        scan_num_heads, scan_head_dim, scan_num_groups, scan_state_dim, scan_least, scan_most, scan_x_first,
            scan_dt_first, scan_gate_first, scan_taps: those of `ConvSsd`. All others are those of `RopeWriteAttention`.
    """

    name = "mixer_decode"
    summary = "decode: attention of one new token a sequence, and convolution and scan of the Mamba-2 block beside it"
    family = "attention"
    inputs = (*RopeWriteAttention.inputs, *(_PORTS[port] for port in ConvSsd.inputs))
    optional = (*RopeWriteAttention.optional, *(_PORTS[port] for port in ConvSsd.optional if port != "token"))
    outputs = ("out", "scan_out", "token")
    accesses = dict.fromkeys((*RopeWriteAttention.accesses, *ConvSsd.accesses), "readwrite")
    stages = FUSED_STAGES

    _: KW_ONLY
    scan_num_heads: int
    scan_head_dim: int
    scan_num_groups: int
    scan_state_dim: int
    scan_least: float
    scan_most: float | None
    scan_x_first: int
    scan_dt_first: int
    scan_gate_first: int
    scan_taps: int

    @property
    def attention(self) -> RopeWriteAttention:
        """The attention."""
        return RopeWriteAttention(**{field.name: getattr(self, field.name) for field in fields(RopeWriteAttention)})

    @property
    def scan(self) -> ConvSsd:
        """The scan."""
        return ConvSsd(**{field.name: getattr(self, f"{_SCAN}{field.name}") for field in fields(ConvSsd)})

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From what the two read -> the result of attention, that of the scan, token."""
        attended, scanned = self.attention.infer(attention_ports(t)), self.scan.infer(scan_ports(t))
        return {**attended, "scan_out": scanned["out"]}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """That of both."""
        attended = self.attention.work(replace(use, inputs=attention_ports(use.inputs)), dims)
        scanned = self.scan.work(replace(use, inputs=scan_ports(use.inputs)), dims)
        flops, store_bytes = attended.flops + scanned.flops, attended.store_bytes + scanned.store_bytes
        return replace(attended, flops=flops, store_bytes=store_bytes)


def attention_ports(bound: Mapping[str, T]) -> dict[str, T]:
    """What the ports of the attention are bound to."""
    ports = (*RopeWriteAttention.inputs, *RopeWriteAttention.optional)
    return {port: bound[port] for port in ports if port in bound}


def scan_ports(bound: Mapping[str, T]) -> dict[str, T]:
    """What the ports of the scan are bound to, by its own names."""
    return {port: bound[name] for port, name in _PORTS.items() if name in bound}


def parts_of(op: Op) -> tuple[Op, Op]:
    """The two ops that an op is."""
    attrs, token = op.attrs_as(MixerDecode), {port: name for port, name in op.outputs.items() if port == "token"}
    attention = replace(op, attrs=attrs.attention, inputs=attention_ports(op.inputs), outputs={"out": op.out} | token)
    outputs = {"out": op.outputs["scan_out"]} | token
    return attention, replace(op, attrs=attrs.scan, inputs=scan_ports(op.inputs), outputs=outputs)


def both_of(attention: Op, scan: Op) -> Op:
    """The op that two are, in the place of either."""
    attrs = attention.attrs_as(RopeWriteAttention).attributes
    of_scan = {f"{_SCAN}{name}": value for name, value in scan.attrs_as(ConvSsd).attributes.items()}
    kind: Any = MixerDecode
    return replace(
        attention,
        attrs=kind(**attrs, **of_scan),
        inputs=attention.inputs | {_PORTS[port]: name for port, name in scan.inputs.items()},
        outputs=attention.outputs | {"scan_out": scan.out},
    )
