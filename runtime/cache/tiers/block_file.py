"""The file of one block: its bytes, what it is, and a checksum of both.

    K and V          `block_bytes` bytes, as `Host.read_blocks` gives them; or a state, and K and V if it ends within a
                     block (`BlockIdentity.data_bytes`)
    b"mlxr-kv3"      the format
    identity         16 bytes: `BlockIdentity.digest`
    digest           16 bytes: of the block
    parent           16 bytes: the digest of the block before it
    tokens           i32 each, little-endian
    checksum         u32, little-endian, of everything before

K and V come first, so that they are read to where they are wanted, and checked there. The digest is a hash of parent
and tokens, so a reader that knows the digest alone can check both. The tokens of a state are `state_tokens`.

The checksum is a CRC-32 of a product code, because a CRC-32 of K and V takes a third of the time of reading them. K and
V are rows of 2048 bytes, of which each is 256 words (u64, little-endian). What is left after the last whole row, the
sums of the columns (256 u64, modulo 2**64), the sums of the rows and everything after K and V, in this order, are what
the CRC-32 is of. Sums say less than the words, but what disks and writers do to files is noticed:

* Up to three wrong words change a sum: four that change none are at the corners of a rectangle.
* A wrong stretch (zeros, old content, part of another file) changes the sums of all its columns and rows, unless its
  mistakes cancel out in each column and also in each row, modulo 2**64.
* Exchanged stretches, or one that has moved by rows, leave the columns' sums alone, but not the order of the rows'.
* A file that is too short or too long is refused before that.

Then the CRC-32 fails to notice one in 2**32 wrong sums, as it fails to notice one in 2**32 wrong blocks. What is never
noticed are rectangles: two rows that gain and lose the same in the same two columns. No device makes those.
"""

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.block_hashes import DIGEST_BYTES, Digest, block_digest
from mlxr.runtime.cache.tiers.block_identity import FORMAT, BlockIdentity

Bytes = npt.NDArray[np.uint8]

_CHECKSUM = struct.Struct("<I")
_ROW_BYTES = 2048


@dataclass(frozen=True, eq=False)
class StoredBlock:
    """A block or a state outside of the arena: its names, and its bytes, `BlockIdentity.data_bytes` of them."""

    digest: Digest
    parent: Digest
    tokens: tuple[int, ...]
    data: Bytes


def file_bytes(identity: BlockIdentity, data_bytes: int | None = None) -> int:
    """The size of the file of a block, or of a state of so many bytes."""
    return (identity.block_bytes if data_bytes is None else data_bytes) + _names(identity).size + _CHECKSUM.size


def encode(identity: BlockIdentity, block: StoredBlock) -> list[bytes | memoryview]:
    """The parts of a block's file, in order."""
    data = np.ascontiguousarray(block.data)
    names = _names(identity).pack(FORMAT, identity.digest, block.digest, block.parent, *block.tokens)
    return [data.data, names, _CHECKSUM.pack(_checksum(data, names))]


def read_block(path: Path, identity: BlockIdentity, digest: Digest, data: Bytes) -> bool:
    """Reads the bytes of a block or of a state from its file.

    Args:
        path: of the file.
        identity: what blocks are wanted.
        digest: which block is wanted.
        data: as many bytes as it has, contiguous; gets them.

    Returns:
        False if the file is damaged, or is not of this block; what is in `data` then is of no use.

    Raises:
        OSError: the file cannot be read.
    """
    layout = _names(identity)
    end = bytearray(layout.size + _CHECKSUM.size + 1)
    if _read([data.data, end], path) != len(data) + len(end) - 1:
        return False
    names = end[: layout.size]
    if _CHECKSUM.unpack_from(end, layout.size)[0] != _checksum(data, names):
        return False
    magic, owner, own, parent, *tokens = layout.unpack(names)
    return (magic, owner, own) == (FORMAT, identity.digest, digest) and block_digest(parent, tokens) == digest


def read_tokens(path: Path, identity: BlockIdentity) -> tuple[int, ...]:
    """Reads the tokens of a block from its file, without K and V, and without a check; none if the file is too short.

    Raises:
        OSError: the file cannot be read.
    """
    layout = _names(identity)
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        names = os.pread(handle, layout.size, identity.block_bytes)
    finally:
        os.close(handle)
    if len(names) < layout.size:
        return ()
    return layout.unpack(names)[4:]


def _read(parts: list[memoryview | bytearray], path: Path) -> int:
    """Reads a file to buffers, one after the other, until they are full; returns how many bytes there were.

    Each call of the system gives up the interpreter's lock, and who wants it back may wait for others: so they are few.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        total = count = os.readv(handle, parts)
        while count and total < sum(map(len, parts)) - 1:  # a network's file system may give less than there is
            rest, skip = list[memoryview](), total
            for part in parts:
                rest.append(memoryview(part)[skip:])
                skip = max(0, skip - len(part))
            count = os.readv(handle, rest)
            total += count
    finally:
        os.close(handle)
    return total


def _checksum(data: Bytes, names: bytes | bytearray) -> int:
    whole = len(data) - len(data) % _ROW_BYTES
    words = data[:whole].view("<u8").reshape(-1, _ROW_BYTES // 8)
    checksum = zlib.crc32(data[whole:].data)
    for axis in (0, 1):
        checksum = zlib.crc32(np.add.reduce(words, axis).data, checksum)
    return zlib.crc32(names, checksum)


def _names(identity: BlockIdentity) -> struct.Struct:
    """What is between K and V and the checksum."""
    return struct.Struct(f"<{len(FORMAT)}s{DIGEST_BYTES}s{DIGEST_BYTES}s{DIGEST_BYTES}s{identity.block_size}i")
