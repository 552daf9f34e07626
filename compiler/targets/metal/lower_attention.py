"""Lowers attention of a prefill step to launches."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.library_call import AttentionCall, LibraryPort
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.attention import RopeAttention
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.schedule.geometry import (
    AttendTile,
    LibraryAttention,
    PrefillAttention,
)
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernels.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernels.attend_prefill import AttendPrefillKernel
from mlxr.compiler.targets.metal.kernels.attend_prefill_mma import AttendPrefillMmaKernel
from mlxr.compiler.targets.metal.kernels.attention_inputs import AttentionInputsKernel
from mlxr.compiler.targets.metal.kernels.attention_kernel import AttentionFields, attention_fields
from mlxr.compiler.targets.metal.kernels.kernel import THREADGROUP_BYTES
from mlxr.compiler.targets.metal.kernels.rope_kernel import RopeFields, rope_fields
from mlxr.compiler.targets.metal.lowering import MetalLowering

MLX_MOST_HEAD_DIM = 128
"""Largest heads that MLX has attention kernels for, on NVIDIA GPUs and on Apple's."""


class AttentionLowering:
    """The rule of prefill attention; launches go to a `MetalLowering`."""

    def __init__(self, lowering: MetalLowering, most_tokens: int) -> None:
        self._to, self._most_tokens = lowering, most_tokens
        self._arena = lowering.arena

    @property
    def rules(self) -> Mapping[type[OpKind], Callable[[Op], None]]:
        """The rule of each op kind."""
        return {
            RopeAttention: self._prefill_attention,
        }

    def _rope_fields(self, op: Op) -> RopeFields:
        return rope_fields(self._to, op)

    def _attention_fields(self, op: Op) -> AttentionFields:
        return attention_fields(self._to, op)

    def _arena_buffers(self, op: Op) -> dict[str, str]:
        return arena_buffers(op)

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
        buffers = self._arena_buffers(op) | {"out": op.out}
        chosen = choice.sizes(PrefillAttention, without=unused)
        library = self._library_condition(kernel, choice)
        if library is not None:
            self._prepare_for_library(op, kernel, library, choice)
        self._to.emit(op, kernel, grid, buffers, yields=library, chosen=chosen)
        if library is not None:
            self._call_library(op, kernel, library)

    def _library_condition(self, kernel: AttendPrefillKernel, choice: Choice) -> Condition | None:
        """When MLX's attention takes a chunk; None: never.

        One sequence that sees all of its context. MLX has matrix kernels for one 16-bit type of queries, keys, values
        and sinks, and for heads of up to 128 elements; it knows no soft cap.
        """
        g, arena, dtype = choice.geometry.prefill_attention.library, self._arena, kernel.activation
        tokens = max(2, g.min_tokens)
        window = kernel.window if kernel.window is not None and kernel.window < arena.context else None
        if not g.min_tokens or tokens > self._most_tokens or g.min_context > (window or arena.context):
            return None
        of_one_type = dtype.is_16_bit and kernel.cache is dtype and kernel.sinks in (None, dtype)
        if not of_one_type or kernel.softcap or arena.head_dim % 8 or arena.head_dim > MLX_MOST_HEAD_DIM:
            return None
        context: Condition | None = None
        if window or g.min_context > tokens:
            context = Condition(dim="context", minimum=g.min_context, maximum=window)
        alone = Condition(dim="seqs", maximum=1, also=context)
        return Condition(dim="tokens", minimum=tokens, also=alone)

    def _library_buffers(self, op: Op) -> dict[str, str]:
        """The buffers of what MLX's attention takes from the kernel before it, by port."""
        return {port: f"{op.name}.{port}" for port in ("queries", "keys", "values")}

    def _prepare_for_library(self, op: Op, kernel: AttendPrefillKernel, when: Condition, choice: Choice) -> None:
        """Adds the launch that rotates queries, and copies keys and values out of the arena."""
        buffers = self._library_buffers(op)
        for port, shape in self._library_shapes(kernel).items():
            self._to.scratch.append(Scratch(buffers[port], shape, kernel.activation))
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
            when=when,
            needs_library=True,
            chosen=choice.sizes(LibraryAttention),
        )

    def _library_shapes(self, kernel: AttendPrefillKernel) -> dict[str, Shape]:
        """Shapes of what MLX's attention takes, by port."""
        arena = self._arena
        of_context: Shape = (1, arena.num_kv_heads, "context", arena.head_dim)
        return {
            "queries": (1, "tokens", kernel.num_heads, arena.head_dim),
            "keys": of_context,
            "values": of_context,
        }

    def _call_library(self, op: Op, kernel: AttendPrefillKernel, when: Condition) -> None:
        """Adds the call of MLX's attention."""
        shapes = self._library_shapes(kernel)
        if "sinks" in op.inputs:
            shapes["sinks"] = self._to.value(op, "sinks").shape
        ports = tuple(LibraryPort(name=port, dtype=kernel.activation, shape=shape) for port, shape in shapes.items())
        call = AttentionCall(function="attention", label=f"mlx.{op.kind}", ports=ports, scale=kernel.scale)
        self._to.call_library(op, call, self._library_buffers(op), when=when)

    def _choose(self, label: str) -> Choice:
        return self._to.table.choose(Site.of_arena(label, self._arena))

    def _fitting_prefill(self, fields: AttentionFields, choice: Choice) -> AttendPrefillKernel:
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
