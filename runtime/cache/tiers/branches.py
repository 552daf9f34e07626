"""Finds stored blocks of which a prompt may use the first tokens: those that follow the same block and begin alike.

A digest finds whole blocks alone. Where a prompt leaves what is stored within a block, or ends there, blocks of the
same branch are candidates: their parent and their first token are the same. What candidates hold must be compared.
"""

from collections.abc import Sequence

from mlxr.runtime.cache.block_hashes import NO_TOKEN, Digest, block_digest

Branch = bytes
"""4 bytes of a hash of a parent and a first token. Blocks of two branches may have the same by chance."""

BRANCH_BYTES = 4


def branch_of(parent: Digest, tokens: Sequence[int]) -> Branch:
    """The branch of a block with at least one token, or of a state (`state_tokens`).

    Of a state it begins as its parent does: who looks for the states of a prompt has to hash nothing.
    """
    return parent[:BRANCH_BYTES] if tokens[0] == NO_TOKEN else block_digest(parent, tokens[:1])[:BRANCH_BYTES]


class Branches:
    """Digests of blocks by their branch. Callers hold a lock."""

    def __init__(self) -> None:
        """Begins without blocks."""
        self._digests: dict[Branch, dict[Digest, None]] = {}

    def add(self, branch: Branch, digest: Digest) -> None:
        """Adds a block, as the newest one of its branch if it is not there."""
        self._digests.setdefault(branch, {})[digest] = None

    def remove(self, branch: Branch, digest: Digest) -> None:
        """Removes a block, if it is there."""
        digests = self._digests.get(branch, {})
        digests.pop(digest, None)
        if not digests:
            self._digests.pop(branch, None)

    def newest(self, branch: Branch, most: int) -> list[Digest]:
        """The last blocks that were added, the newest one first."""
        digests = reversed(self._digests.get(branch, {}))
        return [digest for digest, _ in zip(digests, range(most), strict=False)]
