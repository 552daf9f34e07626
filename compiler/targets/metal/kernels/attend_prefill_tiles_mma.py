"""Attention of a prefill step with MMA of four simdgroups."""

from dataclasses import dataclass, fields
from typing import ClassVar

from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES
from mlxr.compiler.targets.metal.kernels.attend_prefill import AttendPrefillKernel
from mlxr.compiler.targets.metal.kernels.attend_prefill_mma import AttendPrefillMmaKernel

_ROWS = 64
"""Rows of four simdgroups."""
_TOGETHER = 4
_KEYS = 64
_STEP_KEYS = 16
"""Keys of one matrix instruction that multiplies values."""
_STAGES = 3
"""Two threadgroups of 64 rows have room on a multiprocessor."""


@dataclass(frozen=True)
class AttendPrefillTilesMmaKernel(AttendPrefillMmaKernel):
    """Prefill attention with MMA that reads keys and values in threadgroup memory, for four simdgroups at once.

    Attributes:
        stages: tiles of keys and values for which threadgroup memory has room.
        parts: numbers that a query and a weight are.
    """

    template = "attend_prefill_tiles_mma.metal.jinja"
    most_bytes: ClassVar[int] = BLOCK_BYTES
    stages: int = _STAGES
    parts: int = 2

    @staticmethod
    def replacing_tiles(kernel: AttendPrefillKernel, rows: int, parts: int) -> "AttendPrefillTilesMmaKernel":
        """The kernel that does the work of another, with tiles of at most so many rows, 64 or 128."""
        heads = min(rows, kernel.gqa_ratio)
        sizes = {"tile": rows // heads, "heads": heads, "keys": _KEYS, "parts": parts}
        sizes |= {"rows_per_simdgroup": _ROWS // _TOGETHER}
        same = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
        return AttendPrefillTilesMmaKernel(**same | sizes | {"label": f"{kernel.label}_tiles_mma"})

    @property
    def simdgroups(self) -> int:
        """Simdgroups of all rows of a tile."""
        return -(-self.tile * self.heads // _ROWS) * _TOGETHER

    @property
    def stage_vectors(self) -> int:
        """Vectors of 16 bytes of a tile of keys and one of values."""
        return 2 * self.keys * self.chunks

    @property
    def at_once(self) -> int:
        """Keys of which each thread copies a vector."""
        return self.threads // self.chunks

    @property
    def copies(self) -> int:
        """Vectors of a tile of keys that a thread copies, at most."""
        return -(-self.keys // self.at_once)

    @property
    def one_block(self) -> bool:
        """Whether the keys that are copied at once lie in one block."""
        return self.arena.block_size % _STEP_KEYS == 0 and _STEP_KEYS % self.at_once == 0

    @property
    def by_halves(self) -> bool:
        """Whether all elements are turned, by partners in the other half of the head."""
        return self.turns > 0 and self.rotary_dim == self.head_dim and self.rope_layout == "half"

    @property
    def turns(self) -> int:
        """Pairs of cosine and sine of the tile's tokens, in the memory of a tile of keys; 0: no room."""
        turns = self.tile * self.rotary_dim // 2
        return turns if turns <= 2 * self.stage_vectors else 0

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the tiles of keys and values."""
        return self.stages * self.stage_vectors * 16
