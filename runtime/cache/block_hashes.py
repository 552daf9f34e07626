"""Digests of blocks of tokens: equal digests mean equal K and V.

K and V of a token depend on all tokens before it. So the digest of a block hashes the digest of the block before it
(its parent) and its own tokens. The parent of the first block is a root digest, which names everything else that K and
V depend on: weights, artifact, cache type, adapter. A salt in it keeps those who must not share blocks apart.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

Digest = bytes
"""16 bytes of BLAKE2b."""

DIGEST_BYTES = 16
NO_TOKEN = -1


@lru_cache(64)
def root_digest(*parts: str) -> Digest:
    """The parent of a first block.

    Args:
        parts: what K and V depend on besides tokens, and a salt; always as many and in the same order.
    """
    root = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        root.update(len(data).to_bytes(8, "little") + data)
    return root.digest()


def block_digest(parent: Digest, tokens: Sequence[int]) -> Digest:
    """The digest of a block, which may be partly filled: its parent, then its token ids as little-endian int32."""
    return blake2b(parent + struct.pack(f"<{len(tokens)}i", *tokens), digest_size=DIGEST_BYTES).digest()


def state_tokens(rest: Sequence[int], block_size: int) -> tuple[int, ...]:
    """What names a state after full blocks and some more tokens: as many numbers as a block has, but no block's tokens.

    Args:
        rest: the tokens after the full blocks, whose digest is the parent.
        block_size: tokens of a block.
    """
    assert len(rest) < block_size, "a full block is in the parent's digest"
    return (*[NO_TOKEN] * (block_size - len(rest)), *rest)


class BlockHashes:
    """The digests of one list of tokens, which may grow but not change: each digest is computed once."""

    def __init__(self, root: Digest, block_size: int) -> None:
        """Makes the digests of an empty list.

        Args:
            root: the parent of the first block.
            block_size: tokens of a block.
        """
        self.root = root
        self.block_size = block_size
        self._digests: list[Digest] = []

    def of(self, tokens: Sequence[int], length: int) -> list[Digest]:
        """The digests of the full blocks of `tokens[:length]`.

        Args:
            tokens: the list, the same one in each call or grown.
            length: tokens of it that count.
        """
        assert 0 <= length <= len(tokens), f"length {length} of {len(tokens)} tokens"
        num_blocks = length // self.block_size
        return self.after(0, tokens, num_blocks)

    def after(self, first: int, tokens: Sequence[int], num_blocks: int) -> list[Digest]:
        """The same of the full blocks from one on: an answer asks for its newest one, whatever its length."""
        size, digests = self.block_size, self._digests
        start = len(digests)
        if start < num_blocks:
            parent = digests[-1] if digests else self.root
            packed = struct.pack(f"<{(num_blocks - start) * size}i", *tokens[start * size : num_blocks * size])
            for at in range(0, len(packed), 4 * size):  # as `block_digest`, which a prompt would call for each block
                parent = blake2b(parent + packed[at : at + 4 * size], digest_size=DIGEST_BYTES).digest()
                digests.append(parent)
        return digests[first:num_blocks]

    def parent(self, num_blocks: int) -> Digest:
        """The parent of the block after the first `num_blocks`, whose digests are computed."""
        return self._digests[num_blocks - 1] if num_blocks else self.root
