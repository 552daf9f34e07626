"""Blocks of which a prompt uses only the first tokens: they are found by their branch, compared, and checked."""

from pathlib import Path

import numpy as np
import pytest

from mlxr.runtime.cache.prefix_index import CachedBlock
from mlxr.runtime.cache.tiers import disk_tier
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.cache.tiers.fetch import Fetched
from mlxr_tests.kv_blocks import chain, digests, file_of, flip, make_tiers, name


def begun(tiers: BlockTiers, names: list[CachedBlock], parent: bytes, rest: list[int]) -> Fetched:
    """What a fetch gives, if the prompt goes on within a block."""
    return tiers.fetch(digests(names), parent, rest).result(timeout=60)


@pytest.mark.parametrize("memory_blocks", [9, 0], ids=["memory", "disk"])
def test_the_first_tokens_of_a_block_come_back(memory_blocks: int, tmp_path: Path) -> None:
    (first, second, third), data = chain(3)
    fork = name(first.digest, (1, 2, 9, 9))
    rows = np.array([data[0], data[1], data[2], data[0] ^ 1])
    tiers = make_tiers(tmp_path, memory_blocks=memory_blocks)
    tiers.put([first, second, third, fork], rows)
    tiers.flush()
    for _ in range(2):
        for rest, row, count in (
            ([1], None, 1),
            ([1, 2, 3], data[1], 3),
            ([1, 2, 9, 8], rows[3], 3),
            ([1, 2, 9, 9], rows[3], 4),
        ):
            got = begun(tiers, [first], first.digest, rest)
            assert got.num_tokens == 4 + count and (got.data[0] == data[0]).all() and len(got.data) == 2
            assert row is None or (got.data[1] == row).all()
        for parent, rest in ((first.digest, [2, 3]), (second.digest, [1, 2]), (first.digest, [])):
            got = begun(tiers, [first], parent, rest)
            assert (got.num_tokens, len(got.data)) == (4, 1)
        missing = begun(tiers, [first, name(first.digest, (5, 5, 5, 5))], first.digest, [1, 2])
        assert (missing.num_tokens, len(missing.data)) == (4, 1), "what comes before it is not here"
        tiers.close()
        tiers = make_tiers(tmp_path)
    file_of(tmp_path, fork).unlink()
    flip(file_of(tmp_path, second))
    assert begun(tiers, [first], first.digest, [1, 2, 9]).num_tokens == 4
    assert not file_of(tmp_path, second).exists() and tiers.stats().damaged_blocks == 1
    tiers.close()


def test_blocks_of_a_branch_are_compared_and_few_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,), data = chain(1)
    many = [name(first.digest, (1, 2, 3, last)) for last in range(20)]
    liar = name(many[0].digest, (1, 2, 5, 6))
    tiers = make_tiers(tmp_path)
    tiers.save([first, liar, *many], [*data] * 22)
    place = file_of(tmp_path, liar)
    tiers.close()
    place.rename(place.with_stem(place.stem[:33] + file_of(tmp_path, many[0]).stem[33:]))
    looked: list[Path] = []
    read = disk_tier.read_tokens
    monkeypatch.setattr(disk_tier, "read_tokens", lambda path, *rest: looked.append(path) or read(path, *rest))  # type: ignore[func-returns-value]
    tiers = make_tiers(tmp_path)
    assert begun(tiers, [first], first.digest, [1, 2, 5]).num_tokens == 4 + 2
    assert len(looked) == 8
    for block in many:
        file_of(tmp_path, block).unlink()
    assert begun(tiers, [first], first.digest, [1, 2, 5]).num_tokens == 4, "its parent is another block"
    tiers.close()
