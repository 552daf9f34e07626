"""Blocks of the KV cache for tests of tiers: chains of them with bytes that follow from their number."""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.prefix_index import CachedBlock
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers

Bytes = npt.NDArray[np.uint8]

IDENTITY = BlockIdentity(
    model="storyteller 1M",
    weights="w" * 32,
    artifact="a" * 64,
    host="cpu",
    layout="block",
    block_size=4,
    stores=("k_arena 3 2x40 bf16", "v_arena 3 2x40 bf16"),
    block_bytes=3840,
)


def name(parent: bytes, tokens: tuple[int, ...]) -> CachedBlock:
    """The name of a block, hashed as the docs say."""
    text = parent + np.array(tokens, "<i4").tobytes()
    return CachedBlock(0, hashlib.blake2b(text, digest_size=16).digest(), parent, tokens)


def chain(count: int, root: str = "root", identity: BlockIdentity = IDENTITY) -> tuple[list[CachedBlock], Bytes]:
    """Names and bytes of the first blocks of a sequence, always the same ones for the same root."""
    names: list[CachedBlock] = []
    rng = np.random.default_rng(list(root.encode()))
    parent = hashlib.blake2b(root.encode(), digest_size=16).digest()
    data = rng.integers(0, 256, (count, identity.block_bytes), np.uint8)
    for number in range(count):
        names.append(name(parent, tuple(range(number, number + identity.block_size))))
        parent = names[-1].digest
    return names, data


def digests(names: list[CachedBlock]) -> list[bytes]:
    """The digests of blocks."""
    return [block.digest for block in names]


def no_warning(text: str) -> None:
    """For tiers that must not warn."""
    raise AssertionError(f"warned: {text}")


def make_tiers(
    folder: Path | None,
    *,
    memory_blocks: float = 0,
    disk_bytes: int = 1 << 30,
    bytes_per_hour: int = 1 << 40,
    warn: Callable[[str], None] = no_warning,
    identity: BlockIdentity = IDENTITY,
    **options: Any,
) -> BlockTiers:
    """Tiers with so many blocks in memory, and a large disk tier if there is a folder."""
    return BlockTiers(
        identity,
        memory_bytes=int(memory_blocks * identity.block_bytes),
        disk_bytes=disk_bytes if folder else 0,
        folder=folder,
        disk_bytes_per_hour=bytes_per_hour,
        warn=warn,
        **options,
    )


def fetched(tiers: BlockTiers, names: list[CachedBlock]) -> Bytes:
    """The blocks that a fetch gives."""
    return tiers.fetch(digests(names)).result(timeout=60).data


def other(**changes: Any) -> BlockIdentity:
    """The identity with changes."""
    return replace(IDENTITY, **changes)


def file_of(folder: Path, block: CachedBlock) -> Path:
    """The file of a block in a tier's folder, named as the docs say."""
    branch = hashlib.blake2b(block.parent + struct.pack("<i", block.tokens[0]), digest_size=16).digest()[:4]
    return folder / IDENTITY.folder_name / f"{block.digest.hex()}-{branch.hex()}.kv"


def flip(path: Path) -> None:
    """Changes a bit of a file."""
    if content := bytearray(path.read_bytes()):
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
