"""What a launch is for, as the rules of launch geometry see it."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.weight_layout import WeightLayout


@dataclass(frozen=True)
class Site:
    """What a launch is for, as rules see it.

    Attributes:
        label: the readable part of its kernel's name: `qkv`, `gate_up`, `logits`, `experts`, `attend`, ...; `step` of a
            whole decode step, `chunk` of a step of prompts, `arena` of the cache itself.
        outputs: rows of the weight (of one expert's); of attention and the cache KV heads; of a step or chunk layers.
        columns: of the weight; of attention and the cache head_dim; of a step or chunk the hidden size.
        formats: of the weight, in order; of attention and the cache its element type; of a step those of all matrices.
        bits: of a weight with its scales, on average; of attention and the cache those of a cached number.
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
        """The site of a launch that multiplies by a weight, of which each expert has an equal part."""
        bits = 8 * layout.size_bytes / (layout.rows * layout.columns)
        return cls(label, layout.rows // experts, layout.columns, tuple(map(str, layout.formats)), bits)

    @classmethod
    def of_arena(cls, label: str, arena: ArenaGeometry) -> "Site":
        """The site of the cache or of a launch that reads it: one for all layers, which share the partition's size."""
        bits = 8 * arena.row_bytes / arena.head_dim
        return cls(label, arena.num_kv_heads, arena.head_dim, (str(arena.dtype),), bits)

    @classmethod
    def of_chunk(cls, num_layers: int, hidden_size: int) -> "Site":
        """The site of a step of prompts as a whole."""
        return cls("chunk", num_layers, hidden_size, (), 0.0)

    @classmethod
    def of_step(cls, num_layers: int, hidden_size: int, layouts: Sequence[WeightLayout]) -> "Site":
        """The site of a whole decode step, whose matrices lie so."""
        formats = sorted({str(format) for layout in layouts for format in layout.formats})
        numbers = sum(layout.rows * layout.columns for layout in layouts)
        bits = 8 * sum(layout.size_bytes for layout in layouts) / numbers
        return cls("step", num_layers, hidden_size, tuple(formats), bits)
