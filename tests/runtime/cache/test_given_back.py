"""Blocks whose memory goes back to the system while memory is scarce: which, in what order, and what is then found."""

from mlxr.compiler.artifact import LayerGroup
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.pager import Pager

BLOCK = 4


class Prompt:
    """Tokens of a sequence that was in the arena, and whose blocks are cached."""

    def __init__(self, pager: Pager, first: int, length: int) -> None:
        self.tokens, self.hashes = list(range(first, first + length)), BlockHashes(root_digest("x"), BLOCK)
        self._pager, seq_id = pager, pager.add_sequence()
        pager.append(seq_id, length)
        pager.take_copies()
        self.blocks = pager.block_table(seq_id)
        pager.free(seq_id, self.tokens, self.hashes, length)

    @property
    def found(self) -> int:
        """How many of its tokens the arena still has."""
        return self._pager.find_prefix([*self.tokens, 0], self.hashes).num_tokens


def test_idle_blocks_are_given_back_and_taken_last() -> None:
    pager = Pager(8, BLOCK, 8, 3, record_evictions=True)
    first, second = Prompt(pager, 10, 8), Prompt(pager, 50, 12)
    assert (first.blocks, second.blocks) == ((0, 1), (2, 3, 4)) and pager.num_untaken == (3,)
    assert pager.save_memory(True, 30, [10]) == [[1, 0, 4]], "the oldest prefix first, from its end on"
    assert (pager.num_untaken, pager.num_idle) == ((6,), 2)
    assert (first.found, second.found) == (0, 8)
    assert pager.take_evicted() == [], "nobody can save what they held"
    pager.check_integrity()
    seq_id = pager.add_sequence()
    pager.append(seq_id, 1)
    assert pager.block_table(seq_id) == (3,) and second.found == 4, "rather forgets a block than takes more memory"
    pager.save_memory(False, 0, [10])
    pager.append(seq_id, 6 * BLOCK)
    assert pager.block_table(seq_id) == (3, 5, 6, 7, 0, 1, 4) and second.found == 4, "there is memory again"
    pager.check_integrity()


def test_free_blocks_go_before_those_that_are_cached() -> None:
    pager = Pager(8, BLOCK, 8, 3)
    kept, seq_id = Prompt(pager, 10, 8), pager.add_sequence()
    pager.append(seq_id, 8)
    pager.free(seq_id)
    assert pager.save_memory(True, 11, [10]) == [[2, 3]] and kept.found == 8
    assert pager.save_memory(True, 90, [10]) == [[1, 0]] and kept.found == 0
    assert pager.save_memory(True, 90, [10]) == [[]], "nobody has taken the others"


def test_a_contiguous_arena_keeps_its_sequence() -> None:
    pager = Pager(4, BLOCK, 4, 1, contiguous=True)
    kept = Prompt(pager, 10, 8)
    assert pager.save_memory(True, 90, [10]) == [] and kept.found == 8


def test_every_group_gives_back_and_the_free_blocks_of_all_go_first() -> None:
    pager = Pager(8, BLOCK, 8, 3, others=[LayerGroup((1,), 8, 8), LayerGroup((2,), 8, 8)])
    kept, seq_id = Prompt(pager, 10, 8), pager.add_sequence()
    pager.append(seq_id, 8)
    pager.free(seq_id)
    assert pager.num_untaken == (4, 4, 4) and kept.found == 8
    sizes = [10, 100, 1]
    assert pager.save_memory(True, 122, sizes) == [[2, 3], [2, 3], []] and kept.found == 8
    assert pager.save_memory(True, 3, sizes) == [[1], [], [2, 3]] and kept.found == 4
    assert pager.save_memory(True, 999, sizes) == [[0], [1, 0], [1, 0]] and kept.found == 0
    assert pager.num_untaken == (8, 8, 8) and not pager.is_caching
    pager.check_integrity()


def test_every_group_takes_more_memory_last_while_it_is_low() -> None:
    pager = Pager(8, BLOCK, 8, 3, others=[LayerGroup((1,), 8, 8), LayerGroup((2,), 8, 8, 8)])
    kept, seq_id = Prompt(pager, 10, 8), pager.add_sequence()
    for is_low, untaken in ((True, 6), (True, 6), (False, 5), (True, 4)):
        pager.save_memory(is_low, 0, [10, 10, 10])
        pager.append(seq_id, BLOCK)
        assert pager.num_untaken == (untaken,) * 3 and kept.found < 8
    pager.check_integrity()


def test_groups_without_memory_give_none_back() -> None:
    """The first group of a model whose layers all have a window has no layers."""
    pager = Pager(64, BLOCK, 64, 3, others=[LayerGroup((0,), 64, 64, 4)])
    kept = Prompt(pager, 10, 8)
    assert pager.is_caching and kept.found == 8
    assert pager.save_memory(True, 11, [0, 10]) == [[], [1, 0]]
    assert pager.num_untaken == (62, 64) and kept.found == 0
    pager.check_integrity()
