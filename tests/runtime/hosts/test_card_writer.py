"""What many threads write to the card's memory, with a stand-in for the driver."""

import gc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from mlxr.runtime.hosts.cuda import card_writer
from mlxr.runtime.hosts.cuda.card_writer import CardWriter
from mlxr_tests.fake_driver import use_driver


def test_what_threads_write_is_there_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads than pieces, and numbers that fill several pieces, one and a part of one."""
    monkeypatch.setattr(card_writer, "_PIECES", 3)
    monkeypatch.setattr(card_writer, "_PIECE_BYTES", 4096)
    driver, numbers = use_driver(monkeypatch), np.random.default_rng(1).integers(0, 1 << 32, 90_000, np.uint32)
    card, writer = np.zeros_like(numbers), CardWriter()
    cuts = np.cumsum([0, *[1, 1023, 1024, 1025, 5000, 1927] * 9])
    with ThreadPoolExecutor(8) as pool:
        places = [(card.ctypes.data + 4 * int(cut), numbers[cut:end]) for cut, end in pairwise(cuts)]
        for written in [pool.submit(writer.write, *place) for place in reversed(places)]:
            written.result()
    writer.wait()
    assert cuts[-1] == len(numbers) and (card == numbers).all()
    assert len(driver.pinned) == 3
    del writer
    gc.collect()
    assert not driver.pinned and not driver.retained
