"""MLX's attention instead of the prefill attention kernel: its condition, the launch that prepares it, and its call."""

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.library_call import AttentionCall, LibraryPort
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.schedule.geometry import LibraryAttention
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.rope_kernel import rope_fields
from mlxr.compiler.targets.metal.kernels.attend_prefill import AttendPrefillKernel
from mlxr.compiler.targets.metal.kernels.attention_inputs import AttentionInputsKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering

MOST_HEAD_DIM = 128
"""The largest heads for which MLX has attention kernels, on NVIDIA's and Apple's GPUs."""


def library_condition(kernel: AttendPrefillKernel, g: LibraryAttention, most_tokens: int) -> Condition | None:
    """The condition under which MLX's attention replaces a kernel; None: it never does.

    It takes steps of one sequence whose tokens see the whole context. MLX has matrix kernels for heads of up to 128
    elements if queries, keys, values and sinks have one 16-bit type; it has no soft cap, no gate and no
    biases by distance, and here it is given values of the size of keys.

    Args:
        kernel: the kernel.
        g: the geometry: the steps for which MLX's attention is faster.
        most_tokens: tokens of the largest step.
    """
    arena, dtype, tokens = kernel.arena, kernel.activation, max(2, g.min_tokens)
    window = kernel.window if kernel.window is not None and kernel.window < arena.context else None
    if not g.min_tokens or tokens > most_tokens or g.min_context > (window or arena.context):
        return None
    of_one_type = dtype.is_16_bit and kernel.cache is dtype and kernel.sinks in (None, dtype)
    if not of_one_type or kernel.softcap or kernel.gate or arena.head_dim % 8 or arena.head_dim > MOST_HEAD_DIM:
        return None
    if kernel.values_differ or kernel.slopes:
        return None
    context: Condition | None = None
    if window or g.min_context > tokens:
        context = Condition(dim="context", minimum=g.min_context, maximum=window)
    return Condition(dim="tokens", minimum=tokens, also=Condition(dim="seqs", maximum=1, also=context))


def prepare_attention_inputs(
    lowering: MetalLowering, op: Op, kernel: AttendPrefillKernel, choice: Choice, when: Condition
) -> None:
    """Adds the launch that rotates queries, and copies keys and values out of the arena."""
    buffers = _buffers(op)
    for port, shape in _shapes(kernel).items():
        lowering.scratch.append(Scratch(buffers[port], shape, kernel.activation))
    prepare = AttentionInputsKernel("attention_inputs", **rope_fields(lowering, op), temperature=kernel.temperature)
    lowering.emit(
        op,
        prepare,
        (Extent(dim="context", per=prepare.positions), Extent(times=1 + prepare.positions)),
        arena_buffers(lowering, op) | buffers,
        when=when,
        needs_library=True,
        chosen=choice.sizes(LibraryAttention),
    )


def call_attention(lowering: MetalLowering, op: Op, kernel: AttendPrefillKernel, when: Condition) -> None:
    """Adds the call of MLX's attention."""
    shapes = _shapes(kernel)
    if "sinks" in op.inputs:
        shapes["sinks"] = lowering.value(op, "sinks").shape
    call = AttentionCall(
        function="attention",
        label=f"mlx.{op.kind}",
        ports=tuple(LibraryPort(name=port, dtype=kernel.activation, shape=shape) for port, shape in shapes.items()),
        scale=kernel.scale,
    )
    lowering.call_library(op, call, _buffers(op), when=when)


def _buffers(op: Op) -> dict[str, str]:
    """The prepared buffers, by port."""
    return {port: f"{op.name}.{port}" for port in ("queries", "keys", "values")}


def _shapes(kernel: AttendPrefillKernel) -> dict[str, Shape]:
    """The shapes of the prepared buffers, by port."""
    arena = kernel.arena
    of_context: Shape = (1, arena.num_kv_heads, "context", arena.head_dim)
    return {"queries": (1, "tokens", kernel.num_heads, arena.head_dim), "keys": of_context, "values": of_context}
