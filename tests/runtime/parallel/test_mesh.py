"""Ranks connect with each other whoever else connects to them, and say which of them cannot. Ranks are threads here."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mlxr.compiler.artifact import RankPosition
from mlxr.runtime.parallel import handshake, mesh
from mlxr.runtime.parallel.handshake import Purpose, StrangerError
from mlxr.runtime.parallel.join import Gather, World
from mlxr.runtime.parallel.mesh import Mesh
from mlxr_tests.strangers import strangers

PATIENCE_S = 20.0
HERE = "127.0.0.1"
NOWHERE = "192.0.2.1"
"""An address of no machine."""


def connect(monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...]) -> list[Mesh | None]:
    """Connects the ranks of one stage."""
    size = len(hosts)
    barrier, given = threading.Barrier(size, timeout=PATIENCE_S), [b""] * size

    def gather_bytes(rank: int) -> Gather:
        def gather(data: bytes) -> list[bytes]:
            given[rank] = data
            barrier.wait()
            told = list(given)
            barrier.wait()
            return told

        return gather

    def run(rank: int) -> Mesh | None:
        group: Any = rank
        return Mesh.connect(RankPosition(rank=rank, tensor=size, pipeline=1), World(group, "ring", rank, size, hosts))

    monkeypatch.setattr(mesh, "gather_bytes", gather_bytes)
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def test_strangers_who_say_nothing_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROOF_SECONDS", 0.1)
    begin = time.monotonic()
    with strangers(monkeypatch):
        assert all(connect(monkeypatch, (HERE,) * 3))
    assert time.monotonic() - begin < 8, "each of them held the ranks up for 10 s"


def test_a_rank_that_is_taken_for_a_stranger_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[socket.socket] = []

    def check_proof(link: socket.socket, secret: bytes) -> tuple[int, Purpose]:
        checked.append(link)
        if len(checked) == 1:
            raise StrangerError("it took too long")
        return real(link, secret)

    real = mesh.check_proof
    monkeypatch.setattr(mesh, "check_proof", check_proof)
    assert all(connect(monkeypatch, (HERE, HERE)))


def test_a_rank_without_a_proof_is_not_connected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = handshake.prove

    def prove(*arguments: Any) -> None:
        real(*arguments)
        raise StrangerError("the answer took too long")

    monkeypatch.setattr(handshake, "prove", prove)
    assert connect(monkeypatch, (HERE, HERE)) == [None, None]
    assert f"note: rank 1 ({HERE}) cannot reach all other ranks" in caplog.text


def test_a_rank_that_cannot_listen_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert connect(monkeypatch, (HERE, NOWHERE, HERE)) == [None] * 3
    assert f"note: rank 1 ({NOWHERE}) cannot listen at any port, so" in caplog.text
