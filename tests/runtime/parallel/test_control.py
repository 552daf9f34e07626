"""Rank 0 and the others meet whoever else connects, and hear at once of a rank that fails. Ranks are threads here."""

import socket
import threading
import time
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.parallel import follower, handshake, leader
from mlxr.runtime.parallel.follower import Follower
from mlxr.runtime.parallel.handshake import StrangerError
from mlxr.runtime.parallel.leader import Leader
from mlxr.runtime.parallel.step_message import StepLimits
from mlxr_tests.strangers import strangers

PATIENCE_S = 10.0
LIMITS = StepLimits(16, 16, 4, 4, 4, 64, 16)


class Group:
    """Ranks that have met.

    Attributes:
        leader: rank 0.
        followers: the others.
        code: with which one of their processes would have ended.
    """

    def __init__(self, size: int) -> None:
        told: Future[bytes] = Future()
        self.code: Future[int] = Future()

        def give(data: bytes) -> bytes:
            told.set_result(data)
            return data

        def follow(rank: int) -> Follower:
            return Follower(lambda data: told.result(PATIENCE_S), rank, {}, end=self._end)

        with ThreadPoolExecutor(size) as threads:
            followers = threads.map(follow, range(1, size))
            self.leader = Leader(give, size, {}, control="127.0.0.1:0", end=self._end)
            self.followers = list(followers)

    def _end(self, code: int) -> None:
        with suppress(InvalidStateError):  # another thread of these ranks was first
            self.code.set_result(code)

    def close(self) -> None:
        """Ends the ranks' threads."""
        for other in self.followers:
            other.give_up("the test is over")
        self.leader.close()


def test_strangers_do_not_hold_up_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROOF_SECONDS", 0.1)
    begin = time.monotonic()
    with strangers(monkeypatch):
        Group(2).close()
    assert time.monotonic() - begin < 8, "each of them held the ranks up for 10 s"


@pytest.mark.parametrize("answered", [False, True])
def test_a_rank_that_is_taken_for_a_stranger_connects_again(answered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that takes rank 0 for one, because the answer came too late."""
    tries: list[object] = []
    module, name = (handshake, "prove") if answered else (leader, "check_proof")
    real = getattr(module, name)

    def doubt(*arguments: Any) -> Any:
        tries.append(arguments)
        if answered or len(tries) > 1:
            result = real(*arguments)
        if len(tries) == 1:
            raise StrangerError("it took too long")
        return result

    monkeypatch.setattr(module, name, doubt)
    Group(2).close()
    assert len(tries) == 3


@pytest.mark.parametrize("side", ["who listens", "who connects"])
def test_a_stranger_who_trickles_is_let_go(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROOF_SECONDS", 0.2)
    link, stranger = socket.socketpair()
    is_over = threading.Event()

    def trickle() -> None:
        while not is_over.wait(0.05):
            stranger.send(b"x")

    with link, stranger, ThreadPoolExecutor(1) as thread:
        thread.submit(trickle)
        try:
            with pytest.raises(StrangerError, match="timed out"):  # and not for what it has said in the end
                if side == "who listens":
                    handshake.check_proof(link, b"s" * 16)
                else:
                    handshake.prove(link, b"s" * 16, 1, "control", time.monotonic() + 0.2)
        finally:
            is_over.set()


@pytest.mark.parametrize("busy", ["loading", "in a collective"])
def test_a_busy_rank_says_that_rank_0_has_ended(
    busy: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follower, "_END_SECONDS", 30.0 if busy == "loading" else 0.1)
    monkeypatch.setattr(follower, "_LOADING_SECONDS", 0.1)
    group = Group(2)
    if busy == "in a collective":
        host: Any = SimpleNamespace(block_bytes=1, slot_bytes=0, notes=())
        serve = partial(group.followers[0].serve, host, lambda _: threading.Event().wait(), LIMITS)
        threading.Thread(target=serve, daemon=True).start()
        group.leader.wait_until_ready()
    with pytest.raises(KeyboardInterrupt), group.leader.refusing():
        raise KeyboardInterrupt
    assert group.code.result(2) == (1 if busy == "loading" else 75)
    # A rank of an earlier test may still say its line.
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "KeyboardInterrupt; " in line]
    assert line.startswith("rank 1: error: rank 0 has ended: rank 0 (process ")


def test_the_first_failure_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_LOADING_SECONDS", 0.1)
    group = Group(3)
    group.followers[1].give_up("there is no compiler here")
    with ThreadPoolExecutor(1) as thread:
        ready = thread.submit(group.leader.wait_until_ready)
        try:
            with pytest.raises(HostError, match=r"rank 2 \(process .*\): there is no compiler here"):
                ready.result(1)
            assert group.code.result(PATIENCE_S) == 1, "rank 1, which has not answered, ends, too"
        finally:
            group.close()


def test_what_ranks_say_keeps_their_order() -> None:
    group = Group(3)
    with ThreadPoolExecutor(3) as threads:
        ready = threads.submit(group.leader.wait_until_ready)
        for rank in (2, 1):
            host: Any = SimpleNamespace(block_bytes=rank, slot_bytes=3 - rank, notes=(), close=lambda: None)
            threads.submit(group.followers[rank - 1].serve, host, lambda _: None, LIMITS)
            time.sleep(0.05)
        answers = ready.result(PATIENCE_S)
        group.leader.close()
    assert answers == ([(1, 2), (2, 1)], [])
