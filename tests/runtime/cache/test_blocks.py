"""Blocks that are taken several at a time are those that `take` would give one by one."""

import random
from copy import deepcopy

import pytest

from mlxr.runtime.cache.blocks import BlockPool
from mlxr.runtime.cache.prefix_index import CachedBlock


def used_pool(seed: int) -> BlockPool:
    """A pool of a few blocks, of which some are free, some idle and some in use."""
    chance = random.Random(seed)
    pool = BlockPool(chance.randint(1, 12))
    pool.record_evictions, pool.is_frugal, held = chance.random() < 0.5, chance.random() < 0.2, list[int]()
    for number in range(chance.randint(0, 20)):
        if held and chance.random() < 0.5:
            block_id = held.pop(chance.randrange(len(held)))
            if chance.random() < 0.6:
                digest, parent = bytes([number]), bytes([100 + chance.randint(0, 2)])
                pool.index.add(CachedBlock(block_id, digest, parent, (chance.randint(0, 2),)))
            pool.release(block_id)
        elif pool.num_free:
            held.append(pool.take())
    return pool


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_several_blocks_are_those_that_are_taken_one_by_one(first: int) -> None:
    for seed in range(first, first + 100):
        pool = used_pool(seed)
        for count in range(pool.num_free + 1):
            one_by_one, several = deepcopy(pool), deepcopy(pool)
            assert several.take_several(count) == [one_by_one.take() for _ in range(count)]
            versions = several.version, one_by_one.version
            assert (versions[0] > pool.version) == (versions[1] > pool.version)
            several.version = one_by_one.version
            assert repr(vars(several)) == repr(vars(one_by_one))
