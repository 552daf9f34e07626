"""A rank that fails while the ranks load ends all of them, with its reason. Ranks are threads here."""

import threading
from concurrent.futures import Future
from queue import Queue
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from mlxr.compiler.errors import HostError, RankLostError
from mlxr.loading.resolve import resolve_artifact
from mlxr.runtime.engine import group_rank, model
from mlxr.runtime.engine.group_rank import FollowingRank, LeadingRank
from mlxr.runtime.engine.model import Model
from mlxr.runtime.hosts.registry import hosts
from mlxr.runtime.parallel import loss
from mlxr.runtime.parallel.follower import Follower
from mlxr.runtime.parallel.join import gather_bytes
from mlxr.runtime.parallel.leader import Leader
from mlxr_tests.storyteller import TINY

PATIENCE_S = 10.0


class Ranks:
    """Two ranks. A connection of their hosts is a collective: it waits until a rank is lost, unless both come.

    Attributes:
        codes: with which the ranks' processes would have ended.
    """

    def __init__(self) -> None:
        self.codes: Queue[int] = Queue()
        self._collective = threading.Barrier(2, timeout=PATIENCE_S)
        self._told: Future[bytes] = Future()

    def _share(self, rank: int, data: bytes) -> bytes:
        if not rank:
            self._told.set_result(data)
        return self._told.result(PATIENCE_S)

    def _end(self, code: int) -> None:
        self.codes.put(code)
        self._collective.abort()

    def load(self, unconnected: int = -1) -> list[BaseException]:
        """Loads both; what ends them.

        Args:
            unconnected: a rank whose connection fails before the other one knows.
        """
        ends: list[Future[BaseException]] = [Future(), Future()]

        def run(rank: int) -> None:
            try:
                self._load(rank, rank == unconnected)
            except BaseException as error:
                ends[rank].set_result(error)

        for rank in range(2):
            threading.Thread(target=run, args=(rank,), daemon=True).start()
        return [end.result(PATIENCE_S) for end in ends]

    def _load(self, rank: int, fails: bool) -> None:
        def connect(host: object) -> None:
            if fails:
                raise HostError("there is no memory here")
            self._collective.wait()

        def share(data: bytes) -> bytes:
            return self._share(rank, data)

        artifact, _ = resolve_artifact(str(TINY))
        if rank:
            follower = Follower(share, 1, {}, end=self._end)
            FollowingRank(follower, connect).follow(artifact, TINY, host="cpu", threads=1)
            return
        leader = Leader(share, 2, {}, control="127.0.0.1:0", end=self._end)
        with leader.refusing():
            Model(artifact, TINY, host="cpu", threads=1, ranks=LeadingRank(leader, connect, artifact))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.setattr(loss, "_BLAME_SECONDS", 0.5)
    monkeypatch.setattr(loss, "_ANSWER_SECONDS", 0.0)
    return Ranks()


@pytest.mark.parametrize("bad", [0, 1])
def test_a_rank_that_cannot_make_its_host(bad: int, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_host(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(block_bytes=1, slot_bytes=0, notes=())

    def fail(*_: object, **__: object) -> None:
        raise HostError("there is no compiler here")

    for rank, module in enumerate((model, group_rank)):
        monkeypatch.setattr(module, "make_host", fail if rank == bad else make_host)
    errors = ranks.load()
    assert all(isinstance(error, HostError) and "there is no compiler here" in str(error) for error in errors), errors
    assert str(errors[1 - bad]).startswith(f"rank {bad} (process ")
    assert ranks.codes.empty(), "no rank was lost"


@pytest.mark.parametrize("bad", [0, 1])
def test_a_rank_that_cannot_connect_is_lost(bad: int, ranks: Ranks) -> None:
    """The other one waits in a collective by then."""
    error, end = ranks.load(unconnected=bad)
    assert isinstance(end, SystemExit)
    assert isinstance(error, RankLostError) and f"rank {bad} " in str(error), error
    assert "cannot connect with the other ranks: there is no memory here" in str(error)
    assert [ranks.codes.get(timeout=PATIENCE_S) for _ in range(2)] == [75, 75]


def test_a_host_of_whole_models_is_refused() -> None:
    nothing: Any = None
    with pytest.raises(HostError, match="host reference runs no part of a model"):
        LeadingRank(nothing, print, nothing).agree(nothing, nothing, hosts()["reference"])


def test_a_collective_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_gather(*_: object, **__: object) -> None:
        raise RuntimeError("[ring] connection to a peer was lost")

    monkeypatch.setattr(mx.distributed, "all_gather", all_gather)
    group: Any = SimpleNamespace(rank=lambda: 2)
    with pytest.raises(HostError, match=r"rank 2 lost another rank: .*connection to a peer"):
        gather_bytes(group)(b"x")
