"""Attention of a prefill step with MMA, of long heads."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from mlxr.compiler.schedule.geometry import AttendTile
from mlxr.compiler.targets.metal.kernel_parts.kernel import MMA_ROWS, SIMD_WIDTH, THREADGROUP_BYTES
from mlxr.compiler.targets.metal.kernels.attend_prefill import AttendPrefillKernel
from mlxr.compiler.targets.metal.kernels.attend_prefill_mma import AttendPrefillMmaKernel

_KEY_COLUMNS = 32
"""Elements of queries and keys that two matrix instructions multiply."""
_VALUE_COLUMNS = 64
"""Elements of values that a simdgroup reads at once."""
_MOST_COLUMNS = 128
"""The most elements that a simdgroup has, whose queries and sums fit its registers beside keys and values."""
_MOST_WITH_MORE_KEYS = 64
"""The most elements that a simdgroup has beside keys and values of more than 16 positions."""
_MOST_SHARED = 1024
"""The most elements of all simdgroups of a threadgroup together, whose registers fit a multiprocessor."""
_MOST_SHARES = 8
_KEYS = 16
"""Keys of one matrix instruction."""


@dataclass(frozen=True)
class AttendPrefillWideMmaKernel(AttendPrefillMmaKernel):
    """Prefill attention with MMA of heads of more than 128 elements, which simdgroups share."""

    template = "attend_prefill_wide_mma.metal.jinja"

    @staticmethod
    def can_replace(kernel: AttendPrefillKernel) -> bool:
        """Whether matrix instructions can do the work of a kernel."""
        one_type = kernel.activation.is_16_bit and kernel.cache is kernel.activation
        return one_type and kernel.head_dim > _MOST_COLUMNS and bool(_ways_to_share(kernel))

    @staticmethod
    def replacing_wide(kernel: AttendPrefillKernel, rows: int, g: AttendTile) -> "AttendPrefillWideMmaKernel":
        """The MMA kernel that does the work of a kernel, with tiles of at most this many rows.

        Keys and shares do not depend on the rows: a deterministic decode step has fewer and must sum in the same order.
        """
        ways = _ways_to_share(kernel)
        shares = next((shares for shares in ways if shares * g.rows_per_simdgroup >= MMA_ROWS), ways[-1])
        keys = max(_KEYS, g.keys) if _longest(kernel) <= _MOST_WITH_MORE_KEYS * shares else _KEYS
        sizes = {"label": f"{kernel.label}_wide_mma", "shares": shares, "keys": keys, "rows_per_simdgroup": MMA_ROWS}
        same = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
        for fewer in range(rows, 0, -MMA_ROWS):
            heads = min(fewer, kernel.gqa_ratio)
            wide = AttendPrefillWideMmaKernel(**same | sizes | {"tile": fewer // heads, "heads": heads})
            if wide.fits:
                return wide
        raise AssertionError(f"16 rows of {kernel.head_dim} elements fit always")

    @property
    def simdgroups(self) -> int:
        """Simdgroups of all rows of a tile."""
        return -(-self.tile * self.heads // MMA_ROWS) * self.shares

    @property
    def rows(self) -> int:
        """Rows per threadgroup, unused rows included."""
        return self.simdgroups // self.shares * MMA_ROWS

    @property
    def fits(self) -> bool:
        """Whether a threadgroup has the memory and, by the elements of its simdgroups, the registers."""
        elements = self.simdgroups * max(self.columns, self.value_columns)
        return 32 * self.part_vectors <= THREADGROUP_BYTES and elements <= _MOST_SHARED

    @property
    def one_block(self) -> bool:
        """Whether 16 keys always lie in one block."""
        return self.arena.block_size % _KEYS == 0

    @property
    def turns(self) -> int:
        """Pairs of cosine and sine of the tile's tokens, in threadgroup memory that scores fill later; 0: no room."""
        turns = self.tile * self.rotary_dim // 2
        return turns if 8 * turns <= THREADGROUP_BYTES else 0

    @property
    def part_vectors(self) -> int:
        """Vectors of 4 scores of a tile of keys, of all simdgroups and lanes."""
        return self.simdgroups * self.keys // 8 * SIMD_WIDTH

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the parts of scores of two tiles of keys, or of the cosines and sines before them."""
        return max(32 * self.part_vectors, -(-self.turns // 2) * 16)


def _longest(kernel: AttendPrefillKernel) -> int:
    return max(kernel.head_dim, kernel.value_dim)


def _ways_to_share(kernel: AttendPrefillKernel) -> Sequence[int]:
    """How many simdgroups may share the elements of a row; none: no number suits the sizes."""
    return [
        shares
        for shares in range(2, _MOST_SHARES + 1)
        if kernel.head_dim % (_KEY_COLUMNS * shares) == 0
        and kernel.value_dim % (_VALUE_COLUMNS * shares) == 0
        and _longest(kernel) <= _MOST_COLUMNS * shares
    ]
