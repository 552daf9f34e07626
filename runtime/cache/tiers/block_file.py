"""The file of one block: what it is, its bytes, and a checksum of both.

    b"mlxr-kv1"            8 bytes
    length of the head     u32, little-endian
    head                   JSON: the identity, the block's digest, its parent's digest, its tokens
    K and V                `block_bytes` bytes, as `Host.read_blocks` gives them
    checksum               32 bytes of BLAKE2b over everything before

The digest is a hash of parent and tokens, so a reader that knows the digest alone can check both.
"""

import json
import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.block_hashes import DIGEST_BYTES, Digest, block_digest
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity

Bytes = npt.NDArray[np.uint8]
MAGIC = b"mlxr-kv1"

_PREFIX = struct.Struct(f"<{len(MAGIC)}sI")
_CHECKSUM_BYTES = 32


@dataclass(frozen=True, eq=False)
class StoredBlock:
    """A block outside of the arena: its names, and K and V as [block_bytes]."""

    digest: Digest
    parent: Digest
    tokens: tuple[int, ...]
    data: Bytes


def most_file_bytes(identity: BlockIdentity) -> int:
    """No file of a block is larger."""
    names = 2 * 2 * DIGEST_BYTES + 12 * identity.block_size + len(json.dumps(identity.fields))
    return identity.block_bytes + names + 256


def encode(identity: BlockIdentity, block: StoredBlock) -> list[bytes | memoryview]:
    """The parts of a block's file, in order."""
    fields = {
        "identity": identity.fields,
        "digest": block.digest.hex(),
        "parent": block.parent.hex(),
        "tokens": block.tokens,
    }
    head = json.dumps(fields).encode()
    parts: list[bytes | memoryview] = [_PREFIX.pack(MAGIC, len(head)), head, np.ascontiguousarray(block.data).data]
    checksum = blake2b(digest_size=_CHECKSUM_BYTES)
    for part in parts:
        checksum.update(part)
    return [*parts, checksum.digest()]


def decode(content: bytes, identity: BlockIdentity, digest: Digest) -> Bytes | None:
    """K and V of a block: [block_bytes], a view of the content.

    Args:
        content: a whole file.
        identity: what blocks are wanted.
        digest: which block is wanted.

    Returns:
        None if the file is damaged, or is not of this block.
    """
    end = len(content) - _CHECKSUM_BYTES
    if end < _PREFIX.size or blake2b(memoryview(content)[:end], digest_size=_CHECKSUM_BYTES).digest() != content[end:]:
        return None
    magic, length = _PREFIX.unpack_from(content)
    start = _PREFIX.size + length
    if magic != MAGIC or end - start != identity.block_bytes:
        return None
    try:
        fields = json.loads(content[_PREFIX.size : start])
        if not _names(fields, identity, digest):
            return None
    except (ValueError, KeyError, TypeError, struct.error, RecursionError):
        return None
    return np.frombuffer(content, np.uint8, identity.block_bytes, start)


def _names(fields: Any, identity: BlockIdentity, digest: Digest) -> bool:
    """Whether a head names this block of this identity.

    Raises:
        ValueError, KeyError, TypeError, struct.error: it is no head of a block.
    """
    tokens = fields["tokens"]
    return (
        fields["identity"] == identity.fields
        and fields["digest"] == digest.hex()
        and len(tokens) == identity.block_size
        and block_digest(bytes.fromhex(fields["parent"]), tokens) == digest
    )
