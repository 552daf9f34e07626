"""The file of a block: what it says, and that nothing but the whole, right file is ever read as the block."""

import hashlib
import json
import struct
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.runtime.cache.prefix_index import CachedBlock
from mlxr.runtime.cache.tiers.block_file import StoredBlock, decode, encode, most_file_bytes
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr_tests.kv_blocks import IDENTITY, chain, name, other


def file_of(block: CachedBlock, data: Any, identity: BlockIdentity = IDENTITY) -> bytes:
    return b"".join(encode(identity, StoredBlock(block.digest, block.parent, block.tokens, data)))


(_, BLOCK), ((_, DATA)) = chain(2)
FILE = file_of(BLOCK, DATA)


def with_head(head: bytes, data: bytes = DATA.tobytes()) -> bytes:
    """A file with this head, whose checksum is right; written after the docstring, not by the code under test."""
    content = b"mlxr-kv1" + struct.pack("<I", len(head)) + head + data
    return content + hashlib.blake2b(content, digest_size=32).digest()


def test_a_file_says_what_it_is() -> None:
    (length,) = struct.unpack("<I", FILE[8:12])
    head = json.loads(FILE[12 : 12 + length])
    assert head == {
        "identity": asdict(IDENTITY),
        "digest": BLOCK.digest.hex(),
        "parent": BLOCK.parent.hex(),
        "tokens": list(BLOCK.tokens),
    }
    assert with_head(FILE[12 : 12 + length]) == FILE
    data = decode(FILE, IDENTITY, BLOCK.digest)
    assert data is not None and (data == DATA).all()
    largest = name(BLOCK.parent, (-(2**31),) * IDENTITY.block_size)
    assert len(FILE) < len(file_of(largest, DATA)) <= most_file_bytes(IDENTITY)


@given(st.integers(0, len(FILE) * 8 - 1))
def test_no_bit_may_differ(bit: int) -> None:
    content = bytearray(FILE)
    content[bit // 8] ^= 1 << bit % 8
    assert decode(bytes(content), IDENTITY, BLOCK.digest) is None


@given(st.integers(0, len(FILE) - 1), st.binary(max_size=40))
@settings(max_examples=50)
def test_no_byte_may_lack_or_follow(length: int, more: bytes) -> None:
    assert decode(FILE[:length], IDENTITY, BLOCK.digest) is None
    assert not more or decode(FILE + more, IDENTITY, BLOCK.digest) is None
    assert not more or decode(FILE[:length] + more, IDENTITY, BLOCK.digest) is None or FILE[length:] == more


@pytest.mark.parametrize("field", [field.name for field in fields(BlockIdentity)])
def test_blocks_of_another_identity_are_not_read(field: str) -> None:
    value = getattr(IDENTITY, field)
    changed = other(**{field: value + 1 if isinstance(value, int) else value + "x"})
    content = file_of(BLOCK, np.zeros(changed.block_bytes, np.uint8), changed)
    assert decode(content, changed, BLOCK.digest) is not None or field == "block_size"
    assert decode(content, IDENTITY, BLOCK.digest) is None
    assert changed.folder_name != IDENTITY.folder_name


def test_other_blocks_are_not_read() -> None:
    next_block = name(BLOCK.digest, (1, 2, 3, 4))
    assert decode(FILE, IDENTITY, next_block.digest) is None
    for lie in (replace(BLOCK, parent=next_block.digest), replace(BLOCK, tokens=(1, 2, 3, 5))):
        assert decode(file_of(lie, DATA), IDENTITY, BLOCK.digest) is None, "the digest is a hash of parent and tokens"


def test_heads_that_are_none() -> None:
    head = json.loads(FILE[12 : 12 + struct.unpack("<I", FILE[8:12])[0]])
    values = [None, 7, "x", [], {}, ["a", "b", "c", "d"], [2**40] * 4, [0.5] * 4, [[]] * 4]
    lies: list[Any] = [{**head, key: value} for key in head for value in values]
    texts = [json.dumps(lie).encode() for lie in (*values, *lies)]
    for text in (*texts, b"", b"\xff", b"[" * 100_000, b'{"identity": NaN}'):
        assert decode(with_head(text), IDENTITY, BLOCK.digest) is None
    assert decode(with_head(json.dumps(head).encode()), IDENTITY, BLOCK.digest) is not None
