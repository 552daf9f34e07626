"""The site of a launch: the properties that rules of launch geometry match."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.formats.arena import CacheGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_layout import WeightLayout


@dataclass(frozen=True)
class Site:
    """What geometry rules know about a launch.

    Attributes:
        label: the readable part of the kernel's name: `qkv`, `gate_up`, `logits`, `experts`, `attend`, ...; `step` for
            a whole decode step, `chunk` for a prefill step, `arena` for the cache itself, `choice` for that of experts,
            `gated_delta` for that rule; `experts_stream` and `experts_down_stream` for products of one token by weights
            that come through threadgroup memory, `experts_codes` and `experts_down_codes` for those of a few choices.
        outputs: rows of the weight (for experts: of one expert); KV heads for attention and the cache; layers for a
            step or chunk; all experts for their choice; heads of values for the gated delta rule.
        columns: columns of the weight; head_dim for attention and the cache; the hidden size for a step or chunk; a
            token's experts for their choice; elements of a key for the gated delta rule.
        formats: the weight's formats, in order; the cache's element type for attention and the cache; the formats of
            all matrices for a step; the activations' type for the choice of experts and the gated delta rule.
        bits: average bits of a weight's number, scales included; bits of a cached number for attention and the cache;
            of an activation for the choice of experts and the gated delta rule.
    """

    label: str
    outputs: int
    columns: int
    formats: tuple[str, ...]
    bits: float

    def __str__(self) -> str:
        return f"{self.label} {self.outputs}x{self.columns} {'+'.join(self.formats)}".rstrip()

    @classmethod
    def of_weight(cls, label: str, layout: WeightLayout, experts: int = 1) -> "Site":
        """The site of a launch that multiplies by a weight; each expert has an equal part of the weight."""
        bits = 8 * layout.size_bytes / (layout.rows * layout.columns)
        return cls(label, layout.rows // experts, layout.columns, tuple(map(str, layout.formats)), bits)

    @classmethod
    def of_arena(cls, label: str, cache: CacheGeometry) -> "Site":
        """The site of the cache, or of a launch that reads it. All layers share one, and so one partition size."""
        bits = 8 * (cache.row_bytes + cache.value_bytes) / (cache.head_dim + cache.value_dim)
        return cls(label, cache.num_kv_heads, cache.head_dim, (str(cache.dtype),), bits)

    @classmethod
    def of_choice(cls, num_experts: int, top_k: int, activation: DType) -> "Site":
        """The site of the choice among so many experts, of which a token has top_k, for activations of a type."""
        return cls("choice", num_experts, top_k, (str(activation),), 8.0 * activation.size_bytes)

    @classmethod
    def of_delta(cls, num_heads: int, key_dim: int, activation: DType) -> "Site":
        """The site of the gated delta rule of a prefill step, for activations of a type."""
        return cls("gated_delta", num_heads, key_dim, (str(activation),), 8.0 * activation.size_bytes)

    @classmethod
    def of_chunk(cls, num_layers: int, hidden_size: int) -> "Site":
        """The site of a whole prefill step."""
        return cls("chunk", num_layers, hidden_size, (), 0.0)

    @classmethod
    def of_step(
        cls, num_layers: int, hidden_size: int, layouts: Sequence[WeightLayout], *, has_experts: bool = False
    ) -> "Site":
        """The site of a whole decode step, with the layouts of its matrices; with experts it has a label of its own."""
        formats = sorted({str(format) for layout in layouts for format in layout.formats})
        numbers = sum(layout.rows * layout.columns for layout in layouts)
        bits = 8 * sum(layout.size_bytes for layout in layouts) / numbers
        return cls("step_experts" if has_experts else "step", num_layers, hidden_size, tuple(formats), bits)
