"""The file of a block: what it says, and that nothing but the whole, right file is ever read as the block."""

import hashlib
import json
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.runtime.cache.prefix_index import CachedBlock
from mlxr.runtime.cache.tiers.block_file import StoredBlock, encode, file_bytes, read_block
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr_tests.kv_blocks import IDENTITY, chain, name, other


def file_of(block: CachedBlock, data: Any, identity: BlockIdentity = IDENTITY) -> bytes:
    return b"".join(encode(identity, StoredBlock(block.digest, block.parent, block.tokens, data)))


(_, BLOCK), ((_, DATA)) = chain(2)
FILE = file_of(BLOCK, DATA)


def file_with(data: bytes, *names: bytes) -> bytes:
    """A file with a right checksum; written after the docstring, not by the code under test."""
    rows = [struct.unpack_from("<256Q", data, start) for start in range(0, len(data) - 2047, 2048)]
    sums = [sum(column) % 2**64 for column in zip(*rows, strict=True)] or [0] * 256
    sums += [sum(row) % 2**64 for row in rows]
    checked = data[len(rows) * 2048 :] + struct.pack(f"<{len(sums)}Q", *sums) + b"".join(names)
    return data + b"".join(names) + struct.pack("<I", zlib.crc32(checked))


def read(
    content: bytes, digest: bytes = BLOCK.digest, identity: BlockIdentity = IDENTITY
) -> npt.NDArray[np.uint8] | None:
    """K and V of a block, if they are in the file."""
    data = np.full(identity.block_bytes, 0xAA, np.uint8)
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return data if read_block(Path(file.name), identity, digest, data) else None


def test_a_file_says_what_it_is() -> None:
    tokens = struct.pack("<4i", *BLOCK.tokens)
    assert file_with(DATA.tobytes(), b"mlxr-kv3", IDENTITY.digest, BLOCK.digest, BLOCK.parent, tokens) == FILE
    data = read(FILE)
    assert data is not None and (data == DATA).all()
    assert len(FILE) == file_bytes(IDENTITY)


@given(st.integers(0, len(FILE) * 8 - 1))
def test_no_bit_may_differ(bit: int) -> None:
    content = bytearray(FILE)
    content[bit // 8] ^= 1 << bit % 8
    assert read(bytes(content)) is None


@given(st.integers(0, len(FILE) - 1), st.binary(max_size=40))
@settings(max_examples=50)
def test_no_byte_may_lack_or_follow(length: int, more: bytes) -> None:
    assert read(FILE[:length]) is None
    assert not more or read(FILE + more) is None
    assert not more or read(FILE[:length] + more) is None or FILE[length:] == more


@pytest.mark.parametrize("field", [field.name for field in fields(BlockIdentity)])
def test_blocks_of_another_identity_are_not_read(field: str) -> None:
    value = getattr(IDENTITY, field)
    changed = other(
        **{field: value + 1 if isinstance(value, int) else value + (("x",) if isinstance(value, tuple) else "x")}
    )
    block = name(BLOCK.parent, tuple(range(changed.block_size)))
    content = file_of(block, np.zeros(changed.block_bytes, np.uint8), changed)
    assert read(content, block.digest, changed) is not None
    assert read(content, block.digest) is None
    assert changed.folder_name != IDENTITY.folder_name


def test_other_blocks_are_not_read() -> None:
    next_block = name(BLOCK.digest, (1, 2, 3, 4))
    assert read(FILE, next_block.digest) is None
    for lie in (replace(BLOCK, parent=next_block.digest), replace(BLOCK, tokens=(1, 2, 3, 5))):
        assert read(file_of(lie, DATA)) is None, "the digest is a hash of parent and tokens"


@pytest.mark.parametrize("place", range(5))
def test_files_of_another_format_or_with_other_names_are_not_read(place: int) -> None:
    names = [b"mlxr-kv3", IDENTITY.digest, BLOCK.digest, BLOCK.parent, struct.pack("<4i", *BLOCK.tokens)]
    assert read(file_with(DATA.tobytes(), *names)) is not None
    names[place] = names[place][:-1] + bytes([names[place][-1] ^ 1])
    assert read(file_with(DATA.tobytes(), *names)) is None


@pytest.mark.parametrize("block_bytes", [1920, 2048, 6144, 9608])
def test_blocks_of_all_sizes(block_bytes: int) -> None:
    identity, data = other(block_bytes=block_bytes), np.random.default_rng(1).integers(0, 256, block_bytes, np.uint8)
    content = file_of(BLOCK, data, identity)
    names = identity.digest, BLOCK.digest, BLOCK.parent, struct.pack("<4i", *BLOCK.tokens)
    assert content == file_with(data.tobytes(), b"mlxr-kv3", *names)
    assert (read(content, identity=identity) == data).all()  # type: ignore[union-attr]
    for bit in np.random.default_rng(2).integers(0, block_bytes * 8, 50).tolist():
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        assert read(bytes(damaged), identity=identity) is None


PAGE = 4096
LARGE = other(block_bytes=12 * PAGE + 512)
"""With rows that are alike, as those of heads and layers may be."""


def moved(data: npt.NDArray[np.uint8], start: int, target: int, size: int) -> None:
    data[target : target + size] = data[start : start + size].copy()


def exchanged(data: npt.NDArray[np.uint8], start: int, target: int, size: int) -> None:
    was = data[target : target + size].copy()
    moved(data, start, target, size)
    data[start : start + size] = was


def added(data: npt.NDArray[np.uint8], start: int, target: int, size: int) -> None:
    """A row gains what another one loses: no column's sum changes."""
    words = data[: 12 * PAGE].view(np.uint64).reshape(-1, 256)
    words[start // 2048, 3] += np.uint64(size)
    words[target // 2048, 3] -= np.uint64(size)


@pytest.mark.parametrize("damage", [moved, exchanged, added])
@pytest.mark.parametrize("size", [8, 512, PAGE, 3 * PAGE])
def test_content_in_a_wrong_place_is_noticed(damage: Callable[..., None], size: int) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 4, LARGE.block_bytes, np.uint8)
    content = file_of(BLOCK, data, LARGE)
    assert read(content, identity=LARGE) is not None
    for start, target in ((0, 4 * PAGE), (PAGE, 8 * PAGE), (5 * PAGE + 2048, 2048)):
        damaged = np.frombuffer(bytearray(content), np.uint8)[: LARGE.block_bytes].copy()
        damage(damaged, start, target, size)
        assert read(damaged.tobytes() + content[LARGE.block_bytes :], identity=LARGE) is None


@pytest.mark.parametrize("value", [0, 255])
def test_content_that_was_not_written_is_noticed(value: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, LARGE.block_bytes, np.uint8)
    content = file_of(BLOCK, data, LARGE)
    for start in range(0, LARGE.block_bytes, PAGE):
        damaged = data.copy()
        damaged[start : start + PAGE] = value
        assert read(damaged.tobytes() + content[LARGE.block_bytes :], identity=LARGE) is None


def test_files_of_the_second_format_are_not_read() -> None:
    names = [b"mlxr-kv2", IDENTITY.digest, BLOCK.digest, BLOCK.parent, struct.pack("<4i", *BLOCK.tokens)]
    content = DATA.tobytes() + b"".join(names)
    assert read(content + struct.pack("<I", zlib.crc32(content))) is None
    assert read(file_with(DATA.tobytes(), *names)) is None


def test_files_of_the_first_format_are_not_read() -> None:
    head = json.dumps(
        {"identity": asdict(IDENTITY), "digest": BLOCK.digest.hex(), "parent": BLOCK.parent.hex()}
    ).encode()
    content = b"mlxr-kv1" + struct.pack("<I", len(head)) + head + DATA.tobytes()
    content += hashlib.blake2b(content, digest_size=32).digest()
    assert read(content) is None and read(content[: len(FILE)]) is None
