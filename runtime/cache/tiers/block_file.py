"""The file of one block: its bytes, what it is, and a checksum of both.

    K and V          `block_bytes` bytes, as `Host.read_blocks` gives them
    b"mlxr-kv2"      the format
    identity         16 bytes: `BlockIdentity.digest`
    digest           16 bytes: of the block
    parent           16 bytes: the digest of the block before it
    tokens           i32 each, little-endian
    checksum         u32, little-endian: CRC-32 of everything before

K and V come first, so that they are read to where they are wanted, and checked there. The digest is a hash of parent
and tokens, so a reader that knows the digest alone can check both.
"""

import struct
import zlib
from dataclasses import dataclass
from io import BufferedIOBase

import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.block_hashes import DIGEST_BYTES, Digest, block_digest
from mlxr.runtime.cache.tiers.block_identity import FORMAT, BlockIdentity

Bytes = npt.NDArray[np.uint8]

_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, eq=False)
class StoredBlock:
    """A block outside of the arena: its names, and K and V as [block_bytes]."""

    digest: Digest
    parent: Digest
    tokens: tuple[int, ...]
    data: Bytes


def file_bytes(identity: BlockIdentity) -> int:
    """The size of a block's file."""
    return identity.block_bytes + _names(identity).size + _CHECKSUM.size


def encode(identity: BlockIdentity, block: StoredBlock) -> list[bytes | memoryview]:
    """The parts of a block's file, in order."""
    data = np.ascontiguousarray(block.data).data
    names = _names(identity).pack(FORMAT, identity.digest, block.digest, block.parent, *block.tokens)
    return [data, names, _CHECKSUM.pack(zlib.crc32(names, zlib.crc32(data)))]


def read_block(file: BufferedIOBase, identity: BlockIdentity, digest: Digest, data: Bytes) -> bool:
    """Reads K and V of a block from its file.

    Args:
        file: at its start.
        identity: what blocks are wanted.
        digest: which block is wanted.
        data: [block_bytes], contiguous; gets K and V.

    Returns:
        False if the file is damaged, or is not of this block; what is in `data` then is of no use.

    Raises:
        OSError: the file cannot be read.
    """
    layout = _names(identity)
    if file.readinto(data.data) != identity.block_bytes:
        return False
    end = file.read(layout.size + _CHECKSUM.size + 1)
    if len(end) != layout.size + _CHECKSUM.size:
        return False
    names = end[: layout.size]
    if _CHECKSUM.unpack_from(end, layout.size)[0] != zlib.crc32(names, zlib.crc32(data.data)):
        return False
    magic, owner, own, parent, *tokens = layout.unpack(names)
    return (magic, owner, own) == (FORMAT, identity.digest, digest) and block_digest(parent, tokens) == digest


def _names(identity: BlockIdentity) -> struct.Struct:
    """What is between K and V and the checksum."""
    return struct.Struct(f"<{len(FORMAT)}s{DIGEST_BYTES}s{DIGEST_BYTES}s{DIGEST_BYTES}s{identity.block_size}i")
