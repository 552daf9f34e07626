"""Kernel contexts: everything a template is given, one frozen dataclass per template.

A context is a kernel's identity: equal contexts are one kernel. Fields are what the op and the geometry fix; properties
are what follows from them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mlxr.compiler.arena import ArenaGeometry
from mlxr.compiler.dtypes import DType

Port = tuple[str, DType]
SIMD_WIDTH = 32
THREADGROUP_BYTES = 32768


@dataclass(frozen=True)
class Kernel(ABC):
    """A kernel to be rendered. `label` is the readable part of its name."""

    label: str
    template: ClassVar[str]

    @property
    @abstractmethod
    def inputs(self) -> tuple[Port, ...]:
        """Input buffers in order."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[Port, ...]:
        """Output buffers in order."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a threadgroup."""

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of its threadgroup arrays."""
        return 0


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class EmbedKernel(Kernel):
    """Embedding gather."""

    template = "embed.metal.jinja"
    vocab_size: int
    hidden_size: int
    table: DType
    activation: DType

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Token ids and the table."""
        return (("token_ids", DType.I32), ("table", self.table))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The rows."""
        return (("out", self.activation),)

    @property
    def threads(self) -> int:
        """One thread per 8 elements, up to 256."""
        return min(256, round_up(self.hidden_size // 8, SIMD_WIDTH))


@dataclass(frozen=True)
class ProjectionKernel(Kernel):
    """A projection of one row (`tile` 1) or of several."""

    in_features: int
    out_features: int
    weight: DType
    activation: DType
    out: DType
    norm: DType | None
    eps: float | None
    bias: DType | None
    residual: bool
    gather: bool
    activation_kind: str | None
    outs: int
    simdgroups: int
    tile: int

    @property
    def template(self) -> str:  # type: ignore[override]
        """One row or several."""
        return "matvec.metal.jinja" if self.tile == 1 else "matmul.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What the op binds, and the dims if rows are counted at run time."""
        ports: list[Port] = [("x", self.activation), ("weight", self.weight)]
        if self.norm:
            ports.append(("norm", self.norm))
        if self.bias:
            ports.append(("bias", self.bias))
        if self.residual:
            ports.append(("residual", self.out))
        if self.gather:
            ports.append(("rows", DType.I32))
        if self.tile > 1:
            ports.append(("dims", DType.U32))
        return tuple(ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The result."""
        return (("out", self.out),)

    @property
    def threads(self) -> int:
        """All simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def rows(self) -> int:
        """Weight rows of a simdgroup: twice its outputs when gate and up are both needed."""
        return self.outs * (2 if self.activation_kind else 1)

    @property
    def outs_per_threadgroup(self) -> int:
        """Outputs of a threadgroup."""
        return self.outs * self.simdgroups

    @property
    def exact(self) -> bool:
        """Whether no simdgroup has outputs past the end."""
        return self.out_features % self.outs == 0

    @property
    def vec(self) -> int:
        """Columns of one step of a lane: 16 bytes of the weight."""
        return 16 // self.weight.size_bytes

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """The vector loads it uses."""
        return tuple((str(d), self.vec) for d in (self.weight, self.activation, self.norm) if d)

    @property
    def count(self) -> str:
        """The dim that counts its rows."""
        return "rows" if self.gather else "tokens"

    @property
    def formula(self) -> str:
        """What it computes, for the head of the kernel."""
        x = "x[rows]" if self.gather else "x"
        x = f"rms_norm({x})" if self.norm else x
        bias = " + bias" if self.bias else ""
        y = f"{x} @ weight.T{bias}"
        if self.activation_kind:
            y = f"{self.activation_kind}({x} @ gate.T{bias}) * ({x} @ up.T{bias}), weight = [gate; up]"
        return f"out = {y}{' + residual' if self.residual else ''}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        weight_rows = self.out_features * (2 if self.activation_kind else 1)
        rows = [
            f"x          [tokens, {self.in_features}] {self.activation}",
            f"weight     [{weight_rows}, {self.in_features}] {self.weight}",
        ]
        if self.norm:
            rows.append(f"norm       [{self.in_features}] {self.norm}")
        if self.bias:
            rows.append(f"bias       [{weight_rows}] {self.bias}")
        if self.residual:
            rows.append(f"residual   [tokens, {self.out_features}] {self.out}")
        if self.gather:
            rows.append("rows       [rows] i32")
        rows.append(f"out        [{self.count}, {self.out_features}] {self.out}")
        return "".join(f"//   {row}\n" for row in rows)


@dataclass(frozen=True)
class ArenaKernel(Kernel):
    """Base of the kernels that touch the arena."""

    arena: ArenaGeometry

    @property
    def cache(self) -> DType:
        """Element type of the arena."""
        return DType(self.arena.dtype)

    @property
    def cache_bytes(self) -> int:
        """Bytes of an element of the arena."""
        return self.cache.size_bytes

    @property
    def arena_ports(self) -> tuple[Port, ...]:
        """The arena's buffers and the token that orders the access."""
        return (("k_arena", self.cache), ("v_arena", self.cache), ("token", DType.U32))


@dataclass(frozen=True)
class CopyBlocksKernel(ArenaKernel):
    """Copy-on-write of whole blocks."""

    template = "copy_blocks.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Pairs of blocks and the arena."""
        return (("copies", DType.I32), *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The token."""
        return (("token_out", DType.U32),)

    @property
    def threads(self) -> int:
        """A thread per 16 bytes of a block, up to 256."""
        return min(256, round_up(self.chunks, SIMD_WIDTH))

    @property
    def chunks(self) -> int:
        """16-byte chunks of one layer of a block."""
        a = self.arena
        return a.block_size * a.num_kv_heads * a.head_dim * self.cache_bytes // 16


@dataclass(frozen=True)
class RopeKernel(ArenaKernel):
    """Base of the kernels that rotate: heads, RoPE, and the packed q, k, v they read."""

    num_heads: int
    activation: DType
    frequencies: tuple[float, ...]
    rotary_dim: int
    rope_layout: str

    @property
    def num_kv_heads(self) -> int:
        """KV heads."""
        return self.arena.num_kv_heads

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.arena.head_dim

    @property
    def gqa_ratio(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_width(self) -> int:
        """Columns of the packed projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def table_ports(self) -> tuple[Port, ...]:
        """The block table, when positions are looked up."""
        return (("block_tables", DType.I32),) if self.arena.mode == "paged" else ()


@dataclass(frozen=True)
class RopeCacheWriteKernel(RopeKernel):
    """Prefill: K rotated, K and V stored."""

    template = "rope_cache_write.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Packed projection, places and the arena."""
        places = (("positions", DType.I32), ("slots", DType.I32), ("layer", DType.U32))
        return (("qkv", self.activation), *places, *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The token."""
        return (("token_out", DType.U32),)

    @property
    def threads(self) -> int:
        """A thread per element, up to 256."""
        return min(256, round_up(self.num_kv_heads * self.head_dim, SIMD_WIDTH))
