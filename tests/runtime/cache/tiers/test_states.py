"""Snapshots of states in the tiers: found by the tokens that lead to them, and of other sizes than blocks."""

from pathlib import Path

import numpy as np
import pytest

from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.prefix_index import CachedState
from mlxr.runtime.cache.state_slots import Snapshot
from mlxr.runtime.cache.tiers.block_file import Bytes, file_bytes
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr_tests.kv_blocks import flip, make_tiers, other

STATE = 5000
OWN = other(state_bytes=STATE, stores=("k_arena 3 2x40 bf16", "states 1 2x625 f32"))
SIZE = OWN.block_size
TOKENS = list(range(100, 130))


def hashed() -> BlockHashes:
    hashes = BlockHashes(root_digest("root"), SIZE)
    hashes.of(TOKENS, len(TOKENS))
    return hashes


def put(tiers: BlockTiers, *lengths: int) -> list[Bytes]:
    """States after so many tokens, with bytes of their own."""
    snapshots = [Snapshot.of(TOKENS, hashed(), length) for length in lengths]
    names = [CachedState.of(0, *snapshot, 0 if snapshot.rest else -1, SIZE) for snapshot in snapshots]
    sizes = [OWN.data_bytes(name.tokens) for name in names]
    rows = [np.random.default_rng(n).integers(0, 256, size, np.uint8) for n, size in zip(lengths, sizes, strict=True)]
    tiers.put(names, rows)
    return rows


def found(tiers: BlockTiers, least: int = 0, num_blocks: int = len(TOKENS) // SIZE) -> int:
    return tiers.find_state(TOKENS, hashed(), least, num_blocks)[0]


@pytest.mark.parametrize("memory", [0, 9])
def test_the_longest_state_is_found_and_read(memory: int, tmp_path: Path) -> None:
    tiers = make_tiers(tmp_path, memory_blocks=memory, identity=OWN)
    lengths = (3, 4, 8, 9, 14, 29, 30)
    rows = dict(zip(lengths, put(tiers, *lengths), strict=True))
    tiers.flush()
    assert found(tiers) == 29, "the last token's logits are wanted"
    assert [found(tiers, num_blocks=blocks) for blocks in range(8)] == [3, 4, 9, 14, 14, 14, 14, 29]
    assert [found(tiers, least=least, num_blocks=3) for least in (9, 13, 14)] == [14, 14, 0]
    for length, blocks in ((29, 7), (4, 1)):
        got, digest, size = tiers.find_state(TOKENS, hashed(), 0, blocks)
        fetched = tiers.fetch([], state=digest, state_bytes=size).result(timeout=60)
        assert got == length and fetched.state is not None and (fetched.state == rows[length]).all()
    tiers.close()


def test_states_outlive_the_process_and_count_by_their_bytes(tmp_path: Path) -> None:
    tiers = make_tiers(tmp_path, memory_blocks=9, identity=OWN)
    rows = put(tiers, 8, 9)
    assert tiers.stats().memory_bytes == sum(row.nbytes for row in rows)
    tiers.close()
    again = make_tiers(tmp_path, identity=OWN)
    assert again.stats().disk_bytes == sum(file_bytes(OWN, row.nbytes) for row in rows)
    assert found(again) == 9
    again.close()
    another = make_tiers(tmp_path, identity=other(artifact="b" * 64, state_bytes=STATE, stores=OWN.stores))
    assert found(another) == 0, "of another artifact"
    another.close()


def test_a_damaged_state_is_removed(tmp_path: Path) -> None:
    tiers = make_tiers(tmp_path, identity=OWN)
    put(tiers, 8)
    tiers.flush()
    (file,) = tmp_path.rglob("*.kv")
    flip(file)
    _, digest, size = tiers.find_state(TOKENS, hashed(), 0, 7)
    assert tiers.fetch([], state=digest, state_bytes=size).result(timeout=60).state is None
    assert not file.exists() and tiers.stats().damaged_blocks == 1 and found(tiers) == 0
    tiers.close()


def test_what_a_small_disk_keeps_fits_it(tmp_path: Path) -> None:
    sizes = [file_bytes(OWN, STATE + OWN.block_bytes * (length % SIZE > 0)) for length in (9, 8)]
    tiers = make_tiers(tmp_path, memory_blocks=30, disk_bytes=sum(sizes), identity=OWN)
    put(tiers, 4, 13, 8, 9)
    tiers.close()
    again = make_tiers(tmp_path, disk_bytes=sum(sizes), identity=OWN)
    assert again.stats().disk_bytes <= sum(sizes) and found(again, num_blocks=2) == 9
    again.close()
