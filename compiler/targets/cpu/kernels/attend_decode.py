"""Attention of one new token of each sequence, with the write of its keys and values."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.attention import PackedAttention, RopeReadAttention, RopeWriteAttention
from mlxr.compiler.ir.ops.latent import LatentAttention
from mlxr.compiler.targets.cpu.kernel_parts.arena_kernel import LANES
from mlxr.compiler.targets.cpu.kernel_parts.attention_kernel import (
    MATRIX_TILE_BYTES,
    CpuAttentionKernel,
    attention_fields,
)
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHelper
from mlxr.compiler.targets.cpu.kernel_parts.region import Arrays, Region, place_regions, regions_bytes
from mlxr.compiler.targets.cpu.kernels.attend_prefill import CpuAttendPrefill, call_attend_prefill
from mlxr.compiler.targets.cpu.kernels.cache_write import call_cache_write
from mlxr.compiler.targets.cpu.kernels.qk_norm import normed_apart
from mlxr.compiler.targets.cpu.kernels.rope_table import rope_table_buffers
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers

_SPLIT_UNITS = 8
_TILED_HEADS = 4
_LONG_ROW = 256


@dataclass(frozen=True)
class CpuAttendDecode(CpuAttentionKernel):
    """Decode: RoPE, cache write and attention of one new token per sequence; of others' keys, no write."""

    template = "attend_decode.jinja"

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """The headers of attention with matrix tiles, or with biases by distance, if the kernel uses them."""
        return self._tile_headers if self.tiles else self._slope_headers

    @property
    def split_units(self) -> int:
        """Units of 16 keys per thread from which threads share keys instead of KV heads; 0: always."""
        return _SPLIT_UNITS if self.latent_dim is None else 0

    @property
    def key_tile(self) -> int:
        """Keys whose scores are all in scratch at the same time; fewer of long rows, which are to fit a cache."""
        return 32 if max(self.head_dim, self.v_row_dim) > _LONG_ROW else 64

    @property
    def tiles(self) -> bool:
        """Whether long contexts use matrix tiles if the machine has them; with few heads, memory is the limit."""
        return self._may_tile and self.gqa_ratio >= _TILED_HEADS

    @property
    def q_tile_bytes(self) -> int:
        """Bytes of the matrix tiles of the queries on one KV head."""
        return -(-self.gqa_ratio // LANES) * self.steps * MATRIX_TILE_BYTES

    @property
    def regions(self) -> tuple[Region, ...]:
        """A thread's scratch.

        A thread shares at most two sequences with other threads, its first and its last, so it has two partial results.
        """
        tiled: Arrays = (
            ("q_tiles", "uint8_t", (self.num_kv_heads, self.q_tile_bytes)),
            ("copies", "uint8_t", (self.key_tile, self.steps, 64)),
            ("weights", "uint8_t", (self.key_tile // 32, MATRIX_TILE_BYTES)),
            ("v_tiles", "uint8_t", (self.key_tile // 32, 2 * self.v_steps, MATRIX_TILE_BYTES)),
            ("v_sums", "float", (2 * self.v_steps, LANES, LANES)),
        )
        return place_regions(
            (
                ("queries", "float", (self.num_heads, self.padded_dim)),
                ("values", "float", (2, self.num_heads, self.padded_dim)),
                ("maxima", "float", (2, self.num_kv_heads, self.gqa_padded)),
                ("sums", "float", (2, self.num_kv_heads, self.gqa_padded)),
                ("scores", "float", (self.key_tile + 32, LANES)),
                *(tiled if self.tiles else ()),
            )
        )

    @property
    def thread_bytes(self) -> int:
        """Bytes of all regions."""
        return regions_bytes(self.regions)


@lowers(RopeWriteAttention)
def lower_attend_decode(lowering: CpuLowering, op: Op, attrs: RopeWriteAttention) -> None:
    """Adds the call for an op; unless `compute` is `fast`, those of a prefill step, so that both give the same bits."""
    if lowering.compute == "fast":
        _attend(lowering, op, attrs)
        return
    op = normed_apart(lowering, op)
    call_cache_write(lowering, op, op.attrs_as(RopeWriteAttention))
    call_attend_prefill(lowering, op, op.attrs_as(RopeWriteAttention))


@lowers(RopeReadAttention)
def lower_attend_read(lowering: CpuLowering, op: Op, attrs: RopeReadAttention) -> None:
    """The same without a write."""
    if lowering.compute == "fast":
        _attend(lowering, op, attrs)
        return
    op = normed_apart(lowering, op)
    call_attend_prefill(lowering, op, op.attrs_as(RopeReadAttention))


def _attend(lowering: CpuLowering, op: Op, attrs: PackedAttention) -> None:
    kernel = CpuAttendDecode(label="attend_decode", **attention_fields(lowering, op, attrs))
    lowering.add_call(op, kernel, rope_table_buffers(lowering, op, attrs.rope_scale))


@lowers(LatentAttention)
def lower_latent_attention(lowering: CpuLowering, op: Op, attrs: LatentAttention) -> None:
    """Adds the call for an op."""
    lowering.add_call(op, latent_kernel(lowering, op, attrs), {"qkv": op.inputs["q"]})


def latent_kernel(lowering: CpuLowering, op: Op, attrs: LatentAttention) -> CpuAttentionKernel:
    """The kernel of attention; unless `compute` is `fast`, the same for all steps, so that all give the same bits."""
    is_decode = lowering.phase == "decode" and lowering.compute == "fast"
    return (CpuAttendDecode if is_decode else CpuAttendPrefill)(
        label="attend_decode" if is_decode else "attend_prefill",
        arena=lowering.cache_of(op),
        stores=lowering.stores_of(op) * 2,  # its rows are keys, and their first elements values
        group=lowering.group_of(op),
        own_keys=False,
        num_heads=attrs.num_heads,
        rotary_dim=0,
        rope_layout="half",
        scale=attrs.scale,
        window=None,
        compute=lowering.compute,
        temperature=attrs.temperature,
        latent_dim=attrs.kv_rank,
    )
