"""A sequence of the pager: its block table, and how far its K and V are in the arena."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mlxr.runtime.cache.block_hashes import Digest


@dataclass(slots=True)
class BlockSequence:
    """A sequence. The pager and its prefix cache change it."""

    row: int
    """Its row of the pager's array of block tables."""
    length: int = 0
    settled: int = 0
    """Leading tokens whose K and V are in the table's blocks once all steps so far have run."""
    blocks: list[int] = field(default_factory=list)

    committed: int = 0
    """Leading tokens whose K and V others may use; if `settled` is less, that many."""
    num_cached: int = 0
    """Leading blocks that are in the prefix index, each under the digest of the one before it."""
    tokens: Sequence[int] = ()
    """Its tokens, of which the first `committed` count; the caller's own list, which may grow."""
    parent: Digest | None = None
    """The digest of its first `num_cached` blocks, since it was last committed; None: not known."""
