"""Lowers attention of a decode step: chooses kernels by the number of sequences and the length of contexts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.attention import PackedAttention, RopeReadAttention, RopeWriteAttention
from mlxr.compiler.schedule.geometry import AttendPartition, AttendWhole, DecodeAttention
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.head_gate import head_gate
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.attention_kernel import attention_fields
from mlxr.compiler.targets.metal.kernels.attend import AttendKernel
from mlxr.compiler.targets.metal.kernels.attend_mma import AttendMmaKernel
from mlxr.compiler.targets.metal.kernels.attend_reduce import AttendReduceKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@dataclass(frozen=True)
class DecodeVariant:
    """A kernel, and the condition of the steps that it takes; None: it takes all steps."""

    kernel: AttendKernel
    when: Condition | None


@lowers(RopeReadAttention)
def lower_read_attention(lowering: MetalLowering, op: Op, attrs: RopeReadAttention) -> None:
    """The same launches without a write."""
    add_attention(lowering, op, attrs)


@lowers(RopeWriteAttention)
def lower_decode_attention(lowering: MetalLowering, op: Op, attrs: RopeWriteAttention) -> None:
    """Adds the launches of attention with the write of the new token."""
    add_attention(lowering, op, attrs)


def add_attention(lowering: MetalLowering, op: Op, attrs: PackedAttention, *, together: bool = True) -> None:
    """Adds a launch for each variant, and a second launch that merges the parts if the variant splits contexts.

    Args:
        lowering: what is lowered.
        op: attention to the tokens of an arena.
        attrs: its attributes.
        together: whether threadgroups may share a context.
    """
    choice = lowering.table.choose(Site.of_arena("attend", lowering.cache_of(op)))
    geometry = choice.geometry.decode_attention
    if not together:
        geometry = replace(geometry, whole=replace(geometry.whole, together=1))
    for variant in variants_of(lowering, op, attrs, geometry):
        kernel, when = variant.kernel, variant.when
        chosen = choice.sizes(DecodeAttention, without=_unused_sizes(kernel, lowering))
        buffers = arena_buffers(lowering, op) | {"out": op.out}
        grid = [Extent(times=kernel.num_kv_heads * kernel.groups * kernel.together), Extent(dim="seqs")]
        if not kernel.split:
            lowering.emit(op, kernel, tuple(grid), buffers, when=when, chosen=chosen)
            continue
        partial = _partial_results(lowering, op, kernel)
        grid.append(Extent(times=kernel.max_partitions))
        lowering.emit(op, kernel, tuple(grid), buffers | partial, when=when, chosen=chosen)
        reduce = AttendReduceKernel(
            "attend_reduce",
            num_heads=kernel.num_heads,
            head_dim=kernel.value_dim,
            partition=kernel.partition,
            max_partitions=kernel.max_partitions,
            window=kernel.window,
            chunked=kernel.chunked,
            activation=kernel.activation,
            sinks=lowering.optional_dtype(op, "sinks"),
            gate=head_gate(op, lowering.value),
        )
        heads = (Extent(times=kernel.num_heads), Extent(dim="seqs"))
        chosen = choice.sizes(AttendPartition)
        lowering.emit(op, reduce, heads, partial | {"out": op.out}, when=when, chosen=chosen)


def variants_of(lowering: MetalLowering, op: Op, attrs: PackedAttention, g: DecodeAttention) -> Iterator[DecodeVariant]:
    """The kernels that attend, each with its condition. Every step meets the condition of exactly one.

    The geometry decides for each of them whether it uses matrix instructions (MMA), which gain most with long contexts:
    64 sequences of 8B 69 -> 56 us a layer, 32,000 tokens of one sequence 59 -> 41 (experiment 13). Times were measured
    on an H200; experiments are those of benchmarks/NOTES-gpu.md.
    """
    arena, gqa_ratio = lowering.arena, attrs.num_heads // attrs.num_kv_heads
    whole = AttendKernel(
        "attend",
        **attention_fields(lowering, op),
        simdgroups=g.whole.simdgroups,
        partition=0,
        max_partitions=0,
        heads=math.gcd(g.whole.heads, gqa_ratio),
        unroll=g.whole.unroll,
    )
    # No MMA in a step kernel, whose parts share their registers: steps of whole contexts took 745 us without it and 822
    # with it, and beside partitions by MMA other parts would spill registers (experiment 13).
    alone = not lowering.one_kernel
    few: Condition | None = None
    if 0 < g.many.min_sequences <= arena.max_sequences:
        # Many sequences have enough threadgroups, so one of them can take all query heads of a KV head and read keys
        # and values once: a step of 64 sequences of 8B 13.6 -> 10.9 ms (experiment 10).
        many = replace(
            whole,
            label="attend_many",
            simdgroups=g.many.simdgroups,
            heads=math.gcd(g.many.heads, gqa_ratio),
            unroll=g.many.unroll,
        )
        few = Condition(dim="seqs", maximum=g.many.min_sequences - 1)
        kernel, least = _with_mma(many, g.many.mma), g.many.min_sequences
        if isinstance(kernel, AttendMmaKernel) and least < g.many.crowd <= arena.max_sequences:
            # One threadgroup a multiprocessor leaves memory idle while it begins and ends: 64 sequences of 8B 46.3 ->
            # 40.5 us a layer (experiment 72).
            crowd = replace(many, label="attend_crowd", simdgroups=g.many.crowd_simdgroups)
            made = _with_mma(crowd, g.many.mma)
            if isinstance(made, AttendMmaKernel):
                made = replace(made, resident=g.many.crowd_resident)
            yield DecodeVariant(made, Condition(dim="seqs", minimum=g.many.crowd))
            yield DecodeVariant(kernel, Condition(dim="seqs", minimum=least, maximum=g.many.crowd - 1))
        else:
            yield DecodeVariant(kernel, Condition(dim="seqs", minimum=least))
    # Short contexts need one launch: to split them gains less than the second launch costs (not measured alone).
    longest = g.whole.max_context or g.partition.length
    shares = alone and lowering.is_recorded and g.whole.mma and AttendMmaKernel.can_replace(whole)
    together = g.whole.together if shares else 1
    if together > 1:
        # Threadgroups that read each other's memory need no second launch either (experiment 61). Where MLX launches
        # the kernel they cannot, and one of them would take the whole context.
        longest = g.whole.together_context
        whole = replace(whole, simdgroups=g.whole.together_simdgroups)
    short = few if arena.context <= longest else Condition(dim="context", maximum=longest, also=few)
    yield DecodeVariant(_with_mma(whole, alone * g.whole.mma, together), short)
    if arena.context <= longest:
        return
    # Long contexts are split into partitions, so that one sequence has enough threadgroups: 32,000 tokens of 8B 188 ->
    # 54 us (experiment 3). The launch that merges the parts counts the sinks, and applies
    # the gate.
    part = replace(
        whole,
        label="attend_partition",
        simdgroups=g.partition.simdgroups or g.whole.simdgroups,
        heads=math.gcd(g.partition.heads, gqa_ratio) if g.partition.heads else whole.heads,
        unroll=g.partition.unroll or whole.unroll,
        partition=g.partition.length,
        max_partitions=min(g.partition.most, -(-arena.context // g.partition.length)),
        sinks=None,
        gate=None,
    )
    if alone and g.partition.mma and g.partition.mma_simdgroups and AttendMmaKernel.can_replace(part):
        part = replace(part, simdgroups=g.partition.mma_simdgroups)
    long = Condition(dim="context", minimum=longest + 1, also=few)
    yield DecodeVariant(_with_mma(part, alone * g.partition.mma), long)


def _with_mma(kernel: AttendKernel, mma: int, together: int = 1) -> AttendKernel:
    """The MMA kernel, if the geometry asks for it and it is possible; otherwise the kernel itself.

    It has no more simdgroups than threadgroup memory holds results of: with heads of 512 elements that are 14.
    """
    if mma and AttendMmaKernel.can_replace(kernel):
        kernel = AttendMmaKernel.replacing(kernel, together)
    while kernel.threadgroup_bytes > kernel.most_bytes and kernel.simdgroups > 2:
        kernel = replace(kernel, simdgroups=kernel.simdgroups - 2)
    return kernel


def _partial_results(lowering: MetalLowering, op: Op, kernel: AttendKernel) -> dict[str, str]:
    """Adds the buffers of the parts' results, which the second launch merges; returns their names by port."""
    buffers = {"partial": f"{op.name}.partial", "stats": f"{op.name}.stats"}
    parts = ("seqs", kernel.num_heads, kernel.max_partitions)
    lowering.scratch.append(Scratch(buffers["partial"], (*parts, kernel.value_dim), DType.F32))
    lowering.scratch.append(Scratch(buffers["stats"], (*parts, 4), DType.F32))
    return buffers


def _unused_sizes(kernel: AttendKernel, lowering: MetalLowering) -> tuple[str, ...]:
    """Flat names of the sizes that have no effect on a kernel and do not decide which kernel it is."""
    of_together = ("together", "together_simdgroups", "together_context")
    of_mma = (*of_together, "mma_simdgroups", "crowd", "crowd_simdgroups", "crowd_resident")
    if not AttendMmaKernel.can_replace(kernel):
        return DecodeAttention.names("mma", *of_mma)
    unused = DecodeAttention.names(*(("heads", "unroll") if isinstance(kernel, AttendMmaKernel) else of_mma))
    if not lowering.is_recorded:
        unused += DecodeAttention.names(*of_together)
    if lowering.one_kernel:
        unused += (*AttendWhole.names("mma"), *AttendPartition.names("mma"), *DecodeAttention.names(*of_mma))
    return unused
