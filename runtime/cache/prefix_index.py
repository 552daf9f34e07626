"""The index of the prefix cache: which arena block holds which tokens, after which tokens. Only bookkeeping."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mlxr.runtime.cache.block_hashes import Digest, block_digest, state_tokens


@dataclass(slots=True, unsafe_hash=True)
class CachedBlock:
    """What a block holds: K and V of some tokens, in its first slots. Other slots may hold anything.

    Nobody changes one. A prompt makes dozens at its end, and frozen ones would take three times as long.
    """

    block_id: int
    digest: Digest
    """Of `parent` and `tokens`."""
    parent: Digest
    """The digest of the block before it, or the root."""
    tokens: tuple[int, ...]
    """At least one; as many as a block has slots if it is full."""


@dataclass(slots=True, unsafe_hash=True)
class CachedState(CachedBlock):
    """What a slot of states holds, named as a block is (`state_tokens`).

    Its `block_id` is the block within which it ends, so that K and V of its last tokens can be kept with it; -1: it
    ends with a full block.
    """

    slot: int

    @classmethod
    def of(cls, slot: int, digest: Digest, rest: Sequence[int], block_id: int, block_size: int) -> "CachedState":
        """The state after full blocks, of which the last has a digest, and some more tokens."""
        tokens = state_tokens(rest, block_size)
        return cls(block_id, block_digest(digest, tokens), digest, tokens, slot)


@dataclass
class PrefixIndex:
    """The blocks that can be found by their content. No two of them have the same content."""

    cached: dict[int, CachedBlock] = field(default_factory=dict)
    """What each block in the index holds."""
    block_of: dict[Digest, int] = field(default_factory=dict)
    """The block of each content, by its digest."""
    children: dict[Digest, dict[int, list[int]]] = field(default_factory=dict)
    """Blocks by parent and first token: a block that begins as others do is found among these alone."""

    def add(self, block: CachedBlock) -> None:
        """Adds a block that is not in the index, with content that is not in it either."""
        assert block.block_id not in self.cached, f"block {block.block_id} is in the index already"
        assert block.digest not in self.block_of, f"what block {block.block_id} holds is in the index already"
        self.cached[block.block_id] = block
        self.block_of[block.digest] = block.block_id
        if (siblings := self.children.get(block.parent)) is None:
            self.children[block.parent] = {block.tokens[0]: [block.block_id]}  # of nearly each block of a prompt
        else:
            siblings.setdefault(block.tokens[0], []).append(block.block_id)

    def remove(self, block_id: int) -> CachedBlock:
        """Removes a block and returns what it holds."""
        block = self.cached.pop(block_id)
        del self.block_of[block.digest]
        siblings, first = self.children[block.parent], block.tokens[0]
        if len(same := siblings[first]) > 1:
            same.remove(block_id)
        elif len(siblings) > 1:
            del siblings[first]
        else:
            del self.children[block.parent]
        return block

    def one_after(self, parent: Digest, tokens: Sequence[int]) -> int | None:
        """A token that a block under a parent has after these, which are all that it has in common with a prompt.

        Args:
            parent: the digest of what comes before.
            tokens: fewer than a block has; perhaps none.

        Returns:
            The token; None: no block goes on.
        """
        siblings = self.children.get(parent, {})
        if not tokens:
            return next(iter(siblings), None)
        blocks = (self.cached[block_id].tokens for block_id in siblings.get(tokens[0], ()))
        return next((b[len(tokens)] for b in blocks if len(b) > len(tokens) == num_common(b, tokens)), None)

    def longest(self, parent: Digest, tokens: Sequence[int]) -> tuple[int, int]:
        """The block under a parent that has most of the first tokens in common with these.

        Args:
            parent: the digest of what comes before.
            tokens: at least one.

        Returns:
            How many tokens, and the block's id; 0 and -1 if there is none.
        """
        return max(
            (
                (num_common(self.cached[block_id].tokens, tokens), block_id)
                for block_id in self.children.get(parent, {}).get(tokens[0], ())
            ),
            default=(0, -1),
        )


def num_common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first tokens two lists have in common."""
    for count, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return count
    return min(len(a), len(b))
