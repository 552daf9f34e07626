"""A batch as two has the same tokens, and logits of the same rows."""

import numpy as np
import pytest

from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest, query_tiles_of
from mlxr.runtime.hosts.cpu.parallel.batch_halves import batch_halves
from mlxr.runtime.hosts.cpu.parallel.overlap import tokens_to_overlap

TILE = 32


def batch(*parts: tuple[int, int, str]) -> Batch:
    """Of sequences with so many tokens before, so many new ones, and logits of these rows."""
    pager = Pager(num_blocks=200, block_size=16, max_blocks_per_sequence=100, max_sequences=8)
    seqs = [pager.add_sequence() for _ in parts]
    for seq, (before, _, _) in zip(seqs, parts, strict=True):
        if before:
            pager.append(seq, before)
    requests = [
        BatchRequest(seq, list(range(1000 * seq, 1000 * seq + count)), before, rows)
        for seq, (before, count, rows) in zip(seqs, parts, strict=True)
    ]
    return Batch.build(requests, pager, TILE)


def tokens(part: Batch) -> dict[int, tuple[int, int, list[int], bool]]:
    """Of each token id its position, slot, table of blocks, and whether its logits are wanted."""
    sequence = np.repeat(np.arange(part.num_seqs), np.diff(part.query_start))
    wanted = set(part.logit_rows.tolist())
    return {
        int(token): (int(part.positions[i]), int(part.slots[i]), part.block_tables[sequence[i]].tolist(), i in wanted)
        for i, token in enumerate(np.asarray(part.tokens))
    }


@pytest.mark.parametrize(
    ("parts", "counts"),
    [
        ([(0, 512, "last")], (256, 256)),
        ([(40, 300, "none")], (144, 156)),
        ([(7, 1, "last"), (16, 400, "last"), (9, 1, "last")], (192, 210)),
        ([(0, 100, "last"), (3, 200, "none"), (0, 60, "all")], (176, 184)),
    ],
)
def test_halves(parts: list[tuple[int, int, str]], counts: tuple[int, int]) -> None:
    whole = batch(*parts)
    halves = batch_halves(whole)
    assert halves is not None
    first, second = halves
    assert (first.num_tokens, second.num_tokens) == counts and not first.num_rows
    assert not tokens(first).keys() & tokens(second).keys()
    assert tokens(first) | tokens(second) == tokens(whole)
    assert [int(np.asarray(second.tokens)[row]) for row in second.logit_rows] == [
        int(np.asarray(whole.tokens)[row]) for row in whole.logit_rows
    ]
    for half in halves:
        ends = half.positions[half.query_start[1:] - 1] + 1
        np.testing.assert_array_equal(half.context_lens, ends)
        np.testing.assert_array_equal(half.query_tiles, query_tiles_of(half.query_start, TILE))


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 127, "none")],  # too few
        [(0, 512, "all")],  # the first tokens' logits are wanted
        [(0, 100, "last")] * 5,  # no sequence has enough of them
    ],
)
def test_no_halves(parts: list[tuple[int, int, str]]) -> None:
    assert batch_halves(batch(*parts)) is None


def test_slower_networks_overlap_shorter_prompts() -> None:
    """1 GB of weights take 0.1 s to read; a token's sums of 1 MB take 7.6 ms over 1 Gbit/s, 0.4 ms of it the CPU."""
    assert tokens_to_overlap(8e-9, 1_000_000, 1_000_000_000) == int(0.3 / 7.6e-3) + 1
    assert tokens_to_overlap(0.3e-9, 1_000_000, 1_000_000_000) == (1 << 24) - 1
