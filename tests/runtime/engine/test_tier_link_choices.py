"""What a link to the tiers fetches for a prompt, and what it makes of that once it has been read."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np

from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.prefix_cache import Prefix
from mlxr.runtime.engine.tier_link import TierLink

SIZE, TOKENS = 4, list(range(20))


def link_of(*, state_after: int = 0, found: Prefix | None = None, has: int = 0) -> TierLink:
    """A link of a model with states, of which the tiers have one and no block.

    Args:
        state_after: tokens before that state.
        found: the prompt's blocks in the arena.
        has: tokens of it that a sequence could begin with.
    """
    pager: Any = SimpleNamespace(
        block_size=SIZE,
        states=object(),
        find_blocks=lambda tokens, hashes: found,
        find_prefix=lambda tokens, hashes: SimpleNamespace(num_tokens=has),
    )
    tiers: Any = SimpleNamespace(
        count=lambda digests: 0, find_state=lambda tokens, hashes, least, blocks: (state_after, b"state", 9)
    )
    host: Any = SimpleNamespace(block_bytes=8)
    return TierLink(host, pager, tiers, threading.Event())


def request(**fetch: object) -> Any:
    hashes = BlockHashes(root_digest("model", ""), SIZE)
    return SimpleNamespace(answer=SimpleNamespace(tokens=TOKENS), hashes=hashes, fetch=SimpleNamespace(**fetch))


def test_a_state_within_blocks_that_the_arena_has_needs_no_more_of_them() -> None:
    prefix: Any = SimpleNamespace(num_tokens=0, num_known=12)
    stored = link_of(state_after=5)._stored(request(), prefix)
    assert (stored.first, stored.digests, stored.end) == (1, [], 5)


def test_what_the_arena_has_got_meanwhile_is_not_restored() -> None:
    blocks: Future[Any] = Future()
    blocks.set_result(SimpleNamespace(state=object(), num_tokens=8))
    found = Prefix(12, (4, 5, 6), 1)
    for has, length in ((8, None), (12, None), (4, 8)):
        fetch = {"blocks": blocks, "state_after": 8, "first_block": 1, "is_read": False}
        awaited = link_of(found=found, has=has).awaited(request(**fetch))
        assert (awaited and (awaited.num_known, awaited.blocks)) == (length and (length, (4, 5)))


def test_a_sequence_whose_state_cannot_be_written_begins_anew() -> None:
    """It keeps no token: there would be no state after them."""

    def fails(slots: list[int], data: Any, group: None) -> None:
        raise HostError("states could not be written")

    link, lengths = link_of(), list[tuple[int, int]]()
    pager: Any = link._pager
    pager.states = SimpleNamespace(restore=lambda seq_id, length: 3)
    pager.take_evicted = pager.take_copies = list
    pager.blocks_of = lambda seq_id: [4, 5]
    pager.truncate = lambda *cut: lengths.append(cut)
    host: Any = link._host
    host.write_blocks, host.slot_bytes = fails, 16
    blocks: Future[Any] = Future()
    blocks.set_result(SimpleNamespace(data=np.zeros((0, 8), np.uint8), state=np.zeros(16, np.uint8)))
    asked = request(blocks=blocks, first_block=2, is_read=True)
    asked.run = SimpleNamespace(seq_id=7)
    link.restore(asked, Prefix(8, (4, 5), 1, num_known=8, is_awaited=True))
    assert lengths == [(7, 0)]


def test_nothing_is_saved_while_the_machine_lacks_memory() -> None:
    link, put = link_of(), list[object]()
    tiers: Any = link.tiers
    tiers.put = lambda blocks, rows: put.append(blocks)
    block: Any = SimpleNamespace(block_id=3)
    for link.is_paused in (True, False):
        link.save([block])
    assert put == [[block]]
