"""Lowers attention and what surrounds it to launches: cache writes and block copies."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TypedDict

from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.launch import ONE, Condition, Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.buffers import ARENA_TOKEN, ARENAS, layer_buffer
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import OpKind, RopeLayout
from mlxr.compiler.ir.ops.attention import PackedAttention, RopeAttention, RopeWriteAttention
from mlxr.compiler.ir.ops.cache import RopeCacheWrite
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.schedule.geometry import (
    AttendPartition,
    AttendTile,
    AttendWhole,
    DecodeAttention,
    LibraryAttention,
    PrefillAttention,
)
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.metal.kernels.arena_kernels import CopyBlocksKernel, RopeCacheWriteKernel
from mlxr.compiler.targets.metal.kernels.attention_inputs import AttentionInputsKernel
from mlxr.compiler.targets.metal.kernels.attention_kernels import (
    AttendKernel,
    AttendMmaKernel,
    AttendPrefillKernel,
    AttendPrefillMmaKernel,
    AttendReduceKernel,
)
from mlxr.compiler.targets.metal.kernels.kernel import THREADGROUP_BYTES
from mlxr.compiler.targets.metal.lowering import MetalLowering

MLX_MOST_HEAD_DIM = 128
"""Largest heads that MLX has attention kernels for, on NVIDIA GPUs and on Apple's."""


class _RopeFields(TypedDict):
    """Fields of the kernels that rotate."""

    arena: ArenaGeometry
    num_heads: int
    activation: DType
    frequencies: tuple[float, ...]
    rotary_dim: int
    rope_layout: RopeLayout
    rope_scale: float


class _AttentionFields(_RopeFields):
    """Fields of the attention kernels."""

    scale: float
    window: int | None
    softcap: float | None
    temperature: tuple[float, int] | None
    sinks: DType | None


class AttentionLowering:
    """The rules of the ops around attention; launches go to a `MetalLowering`."""

    def __init__(self, lowering: MetalLowering, most_tokens: int) -> None:
        self._to, self._most_tokens = lowering, most_tokens
        self._arena = lowering.arena

    @property
    def rules(self) -> Mapping[type[OpKind], Callable[[Op], None]]:
        """The rule of each op kind."""
        return {
            RopeWriteAttention: self._decode_attention,
            RopeCacheWrite: self._cache_write,
            RopeAttention: self._prefill_attention,
        }

    def _rope_fields(self, op: Op) -> _RopeFields:
        attrs = op.attrs_as(PackedHeads)
        return {
            "arena": self._arena,
            "num_heads": attrs.num_heads,
            "activation": self._to.value(op, "qkv").dtype,
            "frequencies": self._to.value(op, "frequencies").data if attrs.rotary_dim else (),
            "rotary_dim": attrs.rotary_dim,
            "rope_layout": attrs.rope_layout,
            "rope_scale": attrs.rope_scale,
        }

    def _attention_fields(self, op: Op) -> _AttentionFields:
        attrs = op.attrs_as(PackedAttention)
        return {
            **self._rope_fields(op),
            "scale": attrs.scale,
            "window": attrs.window,
            "softcap": attrs.softcap,
            "temperature": attrs.temperature,
            "sinks": self._to.optional_dtype(op, "sinks"),
        }

    def _arena_buffers(self, op: Op) -> dict[str, str]:
        assert op.layer is not None, "the verifier says so of all that access the arena"
        return {"layer": layer_buffer(op.layer), "token_out": op.outputs["token"]}

    def _cache_write(self, op: Op) -> None:
        kernel = RopeCacheWriteKernel("rope_cache_write", **self._rope_fields(op))
        self._to.emit(op, kernel, (Extent(dim="tokens"),), self._arena_buffers(op))

    def _decode_attention(self, op: Op) -> None:
        choice = self._choose("attend")
        g = choice.geometry.decode_attention
        partition = g.partition.length
        partitions = min(g.partition.most, -(-self._arena.context // partition))
        attrs = op.attrs_as(PackedHeads)
        gqa_ratio = attrs.num_heads // attrs.num_kv_heads
        whole = AttendKernel(
            "attend",
            **self._attention_fields(op),
            simdgroups=g.whole.simdgroups,
            partition=0,
            max_partitions=0,
            heads=math.gcd(g.whole.heads, gqa_ratio),
            unroll=g.whole.unroll,
        )
        buffers = self._arena_buffers(op) | {"out": op.out}
        # As parts of one kernel, those by matrix instructions would take the registers of others.
        alone = not self._to.one_kernel
        few: Condition | None = None
        if 0 < g.many.min_sequences <= self._arena.max_sequences:
            many = replace(
                whole,
                label="attend_many",
                simdgroups=g.many.simdgroups,
                heads=math.gcd(g.many.heads, gqa_ratio),
                unroll=g.many.unroll,
            )
            many = _by_matrix(many) if g.many.mma else many
            enough = Condition(dim="seqs", minimum=g.many.min_sequences)
            few = Condition(dim="seqs", maximum=g.many.min_sequences - 1)
            self._to.emit(op, many, self._attend_grid(many), buffers, when=enough, chosen=_sizes(choice, many, alone))
        short, longest = _by_matrix(whole) if g.whole.mma and alone else whole, g.whole.max_context or partition
        if self._arena.context <= longest:
            self._to.emit(op, short, self._attend_grid(short), buffers, when=few, chosen=_sizes(choice, short, alone))
            return
        when = Condition(dim="context", maximum=longest, also=few)
        self._to.emit(op, short, self._attend_grid(short), buffers, when=when, chosen=_sizes(choice, short, alone))
        long = Condition(dim="context", minimum=longest + 1, also=few)
        # The reduction counts the sinks, once.
        part = replace(
            whole,
            label="attend_partition",
            simdgroups=g.partition.simdgroups or whole.simdgroups,
            heads=math.gcd(g.partition.heads, gqa_ratio) if g.partition.heads else whole.heads,
            unroll=g.partition.unroll or whole.unroll,
            partition=partition,
            max_partitions=partitions,
            sinks=None,
        )
        part = _by_matrix(part) if g.partition.mma and alone else part
        heads, head_dim = whole.num_heads, whole.head_dim
        between = {"partial": f"{op.name}.partial", "stats": f"{op.name}.stats"}
        self._to.scratch.append(Scratch(between["partial"], ("seqs", heads, partitions, head_dim), DType.F32))
        self._to.scratch.append(Scratch(between["stats"], ("seqs", heads, partitions, 4), DType.F32))
        part_grid = (*self._attend_grid(part), Extent(times=partitions))
        self._to.emit(op, part, part_grid, buffers | between, when=long, chosen=_sizes(choice, part, alone))
        reduce = AttendReduceKernel(
            "attend_reduce", heads, head_dim, partition, partitions, whole.window, whole.activation, whole.sinks
        )
        reduce_grid = (Extent(times=heads), Extent(dim="seqs"))
        self._to.emit(
            op, reduce, reduce_grid, between | {"out": op.out}, when=long, chosen=choice.sizes(AttendPartition)
        )

    def _attend_grid(self, kernel: AttendKernel) -> tuple[Extent, Extent]:
        return Extent(times=self._arena.num_kv_heads * kernel.groups), Extent(dim="seqs")

    def _prefill_attention(self, op: Op) -> None:
        choice = self._choose("attend_prefill")
        kernel = self._fitting_prefill(self._attention_fields(op), choice)
        by_matrix = AttendPrefillMmaKernel.takes(kernel)
        tile = choice.geometry.prefill_attention.tile
        unused = AttendTile.names("mma") if not by_matrix else ()
        if tile.mma and by_matrix:
            kernel = AttendPrefillMmaKernel.made_of(kernel, tile.rows)
            unused = AttendTile.names("keys", "rows_per_simdgroup")
        grid = (Extent(times=self._arena.num_kv_heads * kernel.head_groups), Extent(dim="tiles"))
        mlx, mlx_inputs = self._for_mlx(op, kernel, choice)
        buffers = self._arena_buffers(op) | {"out": op.out}
        chosen = choice.sizes(PrefillAttention, without=unused)
        self._to.emit(op, kernel, grid, buffers, mlx=mlx, mlx_inputs=mlx_inputs, chosen=chosen)

    def _for_mlx(
        self, op: Op, kernel: AttendPrefillKernel, choice: Choice
    ) -> tuple[tuple[Condition, ...], tuple[tuple[str, str], ...]]:
        """When MLX's attention takes a chunk, and what it takes.

        One sequence that sees all of its context. MLX has matrix kernels for one 16-bit type of queries, keys, values
        and sinks, and for heads of up to 128 elements; it knows no soft cap.
        """
        g, arena, dtype = choice.geometry.prefill_attention.library, self._arena, kernel.activation
        tokens = max(2, g.min_tokens)
        window = kernel.window if kernel.window is not None and kernel.window < arena.context else None
        if not g.min_tokens or tokens > self._most_tokens or g.min_context > (window or arena.context):
            return (), ()
        of_one_type = dtype.is_16_bit and kernel.cache is dtype and kernel.sinks in (None, dtype)
        if not of_one_type or kernel.softcap or arena.head_dim % 8 or arena.head_dim > MLX_MOST_HEAD_DIM:
            return (), ()
        mlx = [Condition(dim="tokens", minimum=tokens), Condition(dim="seqs", maximum=1)]
        if window or g.min_context > tokens:
            mlx.append(Condition(dim="context", minimum=g.min_context, maximum=window))
        ports = tuple((name, f"{op.name}.{name}") for name in ("queries", "keys", "values"))
        buffers = dict(ports)
        context = (1, arena.num_kv_heads, "context", arena.head_dim)
        self._to.scratch.append(Scratch(buffers["queries"], (1, "tokens", kernel.num_heads, arena.head_dim), dtype))
        self._to.scratch += [Scratch(buffers[name], context, dtype) for name in ("keys", "values")]
        prepare = AttentionInputsKernel(
            "attention_inputs",
            **self._rope_fields(op),
            temperature=kernel.temperature,
        )
        self._to.emit(
            op,
            prepare,
            (Extent(dim="context", per=prepare.positions), Extent(times=1 + prepare.positions)),
            self._arena_buffers(op) | buffers,
            mlx=tuple(mlx),
            feeds_mlx=True,
            chosen=choice.sizes(LibraryAttention),
        )
        return tuple(mlx), ports

    def _choose(self, label: str) -> Choice:
        return self._to.table.choose(Site.of_arena(label, self._arena))

    def _fitting_prefill(self, fields: _AttentionFields, choice: Choice) -> AttendPrefillKernel:
        """The largest tiles that threadgroup memory holds: full key tiles first, then rows."""
        g = choice.geometry.prefill_attention.tile
        keys = g.keys
        while keys >= 4:
            rows = g.rows
            while rows >= 8:
                kernel = AttendPrefillKernel(
                    "attend_prefill",
                    **fields,
                    tile=1,
                    heads=1,
                    keys=keys,
                    rows_per_simdgroup=g.rows_per_simdgroup,
                )
                heads = min(rows, kernel.gqa_ratio)
                kernel = replace(kernel, tile=rows // heads, heads=heads)
                if kernel.threadgroup_bytes <= THREADGROUP_BYTES and kernel.threads <= 1024:
                    return kernel
                rows //= 2
            keys //= 2
        raise PlanError(f"no prefill attention tile of heads of {self._arena.head_dim} fits {THREADGROUP_BYTES} bytes")


def _sizes(choice: Choice, kernel: AttendKernel, alone: bool) -> ChosenGeometry:
    """The sizes of attention that mean something to a kernel, or say which one it is where that is open."""
    unused = DecodeAttention.names("heads", "unroll") if isinstance(kernel, AttendMmaKernel) else ()
    if not AttendMmaKernel.takes(kernel):
        unused = DecodeAttention.names("mma")
    elif not alone:
        unused += (*AttendWhole.names("mma"), *AttendPartition.names("mma"))
    return choice.sizes(DecodeAttention, without=unused)


def _by_matrix(kernel: AttendKernel) -> AttendKernel:
    """The same by matrix instructions, where they can do it."""
    if not AttendMmaKernel.takes(kernel):
        return kernel
    same = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
    return AttendMmaKernel(**same | {"label": f"{kernel.label}_mma", "heads": kernel.gqa_ratio, "unroll": 1})


def copy_blocks_launch(arena: ArenaGeometry) -> PendingLaunch:
    """The launch that copies blocks before a step writes into shared ones."""
    kernel = CopyBlocksKernel("copy_blocks", arena)
    return PendingLaunch(
        "copy_blocks",
        kernel,
        ("copies", *ARENAS, ARENA_TOKEN),
        ("copy_blocks.token",),
        (Extent(dim="copies"), Extent(times=arena.num_layers), ONE),
    )
