"""A rank that only executes: what it tells rank 0, and the loop that runs the steps that rank 0 describes."""

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np

from mlxr.compiler.errors import HostError, MlxrError, RankError
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.parallel.connection import Connection, ConnectionEndedError, Facts, MessageKind
from mlxr.runtime.parallel.handshake import Purpose, StrangerError, connect
from mlxr.runtime.parallel.heartbeat import Heartbeat
from mlxr.runtime.parallel.identity import Identity
from mlxr.runtime.parallel.loss import LOST_CODE, Loss, write_line
from mlxr.runtime.parallel.meeting import Meeting, Share, find
from mlxr.runtime.parallel.step_message import STATES, StepLimits, starts_ahead, unpack_step

_CONNECT_SECONDS = 60.0
"""How long to try to connect to rank 0, which waits for so long, too."""
_END_SECONDS = 10.0
"""How long this process may take to end after rank 0 has."""
_LOADING_SECONDS = 1.0
"""The same while it loads: nothing will come of that."""
_STEPS_AHEAD = 2
"""Most steps that have been started and not waited for, as many as rank 0's engine has."""
_IDLE_SECONDS = 0.5
"""How long after a step nothing must come until this rank looks whether it has failed."""


class Follower:
    """A rank's connection to rank 0.

    Attributes:
        rank: of this process.
        local_size: ranks on this machine.
    """

    def __init__(
        self, share: Share, rank: int, same: Mapping[str, str], *, end: Callable[[int], None] = os._exit
    ) -> None:
        """Connects to rank 0.

        Args:
            share: a collective of the group.
            rank: of this process.
            same: what must be the same on all ranks, by the names of `identity.FIXES`.
            end: ends the process after a loss.

        Raises:
            HostError: rank 0 cannot be reached, or refuses this rank.
        """
        self.rank, self._loss, self._end = rank, Loss(end), end
        self._leader, self._is_loading = "rank 0", True
        self._running: deque[mx.array] = deque()
        """Of each step that has been started and not waited for, an array that is computed with it."""
        meeting, until = find(share), time.monotonic() + _CONNECT_SECONDS
        self._connection = Connection(_connect(meeting, rank, "control", until), "rank 0")
        links = {0: _connect(meeting, rank, "heartbeat", until)}
        self._heartbeat = Heartbeat(links, self._lost, self._leader_ended)
        facts = self._exchange(Identity.here(rank).facts | dict(same))
        self._leader = str(Identity.of(0, facts))
        self.local_size = int(facts.get("local_size", 1))

    def agree(self, blocks: int, same: Mapping[str, object]) -> int:
        """The blocks that the arena of every rank gets; see `Leader.agree`.

        Raises:
            HostError: rank 0 refuses; the message says why.
        """
        return int(self._exchange({"blocks": blocks, **same})["blocks"])

    def _exchange(self, facts: Facts) -> dict[str, Any]:
        self._is_loading = False  # if rank 0 refuses, this gets the reason
        try:
            self._connection.send_facts(facts)
            answer = self._connection.receive_facts()
        except ConnectionEndedError as error:
            self._fail(f"its control connection broke: {error}")
        self._is_loading = True
        return answer

    def give_up(self, reason: str) -> None:
        """Tells rank 0 why this rank cannot take part; this process is about to end by itself."""
        self._is_loading = False
        self._connection.send_error(reason)
        self._heartbeat.end()

    def serve(self, host: Host, connect: Callable[[Host], object], limits: StepLimits) -> None:
        """Waits until all ranks have loaded, and runs the steps that rank 0 describes until it ends.

        Args:
            host: of this rank; it is closed at the end.
            connect: gives it its collectives; all ranks do it at the same time.
            limits: of its plan and arena.

        Raises:
            HostError: rank 0, or another rank, cannot load.
        """
        sizes = {"block_bytes": host.block_bytes, "slot_bytes": host.slot_bytes}
        self._exchange({**sizes, "notes": list(host.notes)})
        self._is_loading = False
        try:
            connect(host)
        except Exception as error:  # the others may wait in a collective: only their heartbeats can end them
            self._fail(f"it cannot connect with the other ranks: {error}", own=True)
        all_blocks = limits.num_blocks * (host.block_bytes + 8), limits.state_slots * (host.slot_bytes + 8)
        most = max(limits.most_bytes, *(8 + num_bytes for num_bytes in all_blocks))
        with _Signals(self.rank):
            try:
                while True:
                    if self._running and not self._connection.has_message(_IDLE_SECONDS):
                        self._wait_for_steps(0)
                    kind, data = self._connection.receive(most)
                    if kind in (MessageKind.CLOSE, MessageKind.ERROR):
                        break
                    self._run(host, limits, kind, data)
                self._wait_for_steps(0)
            except ConnectionEndedError as error:
                self._fail(f"its control connection broke: {error}")
            except Exception as error:
                self._fail(f"a step failed: {type(error).__name__}: {error}", own=True)
            host.close()
            if kind == MessageKind.ERROR:  # rank 0 could not load what comes after the ranks
                raise HostError(bytes(data).decode(errors="replace"))

    def _run(self, host: Host, limits: StepLimits, kind: MessageKind, data: bytearray) -> None:
        if kind == MessageKind.STEP:
            logits = host.step(unpack_step(data, limits, partial(host.shared_ids, None)))
            if host.pipelines:  # the collectives of this step come before those of the next one
                assert isinstance(logits, mx.array), "a host that pipelines gives lazy logits"
                host.start(logits, host.arena.token)
                self._running.append(host.arena.token)
                self._wait_for_steps(_STEPS_AHEAD - 1 if starts_ahead(host) else 0)
        elif kind == MessageKind.COPY:
            group = int.from_bytes(data[:4], "little")
            copies = _numbers(data[4:], 2, limits.blocks_of(group))
            host.copy_blocks(list(zip(copies[::2], copies[1::2], strict=True)), group)
        elif kind == MessageKind.READ:
            group = int.from_bytes(data[:4], "little", signed=True)
            ids = _numbers(data[4:], 1, limits.blocks_of(group))
            try:
                blocks = host.read_blocks(ids, None if group == STATES else group)
            except MlxrError as error:
                self._connection.send_error(str(error))
            else:
                self._connection.send(MessageKind.BLOCKS, np.ascontiguousarray(blocks).data.cast("B"))
        elif kind == MessageKind.WRITE:
            group, count = (int.from_bytes(data[i : i + 4], "little", signed=True) for i in (0, 4))
            size = host.slot_bytes if group == STATES else host.block_bytes
            if len(data) != 8 + count * (4 + size):
                raise HostError(f"{len(data)} bytes to write {count} blocks of {size} bytes")
            ids = _numbers(data[8 : 8 + 4 * count], 1, limits.blocks_of(group))
            blocks = np.frombuffer(data, np.uint8, offset=8 + 4 * count).reshape(count, -1)
            host.write_blocks(ids, blocks, None if group == STATES else group)
        else:
            raise HostError(f"rank 0 sent {kind.name}, expected a step, blocks or the end")

    def _wait_for_steps(self, most: int) -> None:
        """Waits until at most so many steps run."""
        while len(self._running) > most:
            mx.eval(self._running.popleft())

    def _fail(self, reason: str, *, own: bool = False) -> NoReturn:
        """Ends this process because its steps are no longer those of the others."""
        self._loss.wait_for_reason()
        text = f"rank {self.rank}: {reason}"
        self._loss.tell(text, f"{text}; it ends", lambda: self._heartbeat.report(reason if own else text))
        self._loss.wait_for_end()
        raise SystemExit(LOST_CODE)

    def _lost(self, rank: int, reason: str) -> None:
        """Runs in the heartbeat's thread."""
        if rank < 0:
            told = reason
        elif reason.startswith("rank "):
            told = reason  # rank 0 tells of another one
        else:
            told = f"{self._leader} was lost: {reason}"
        self._loss.tell(told, f"rank {self.rank}: error: {told}; this rank ends", self._connection.shut)

    def _leader_ended(self, reason: str) -> None:
        """Rank 0 ends as it should, so this process is about to. If it still loads, or hangs in a step, it is ended."""
        time.sleep(_LOADING_SECONDS)
        if not self._is_loading:
            time.sleep(_END_SECONDS)
        told = f"rank 0 has ended: {reason}" if reason else f"{self._leader} has ended"
        write_line(f"rank {self.rank}: error: {told}; this rank ends")
        self._end(1 if self._is_loading else LOST_CODE)  # 1: rank 0 has refused, and would again


class _Signals:
    """While this rank serves, rank 0 decides when all end: Ctrl-C in a terminal reaches every rank."""

    def __init__(self, rank: int) -> None:
        self._rank, self._count = rank, 0

    def __enter__(self) -> None:
        self._before = []
        if threading.current_thread() is not threading.main_thread():
            return  # no other thread gets signals
        self._before = [
            (number, signal.signal(number, action))
            for number, action in ((signal.SIGINT, signal.SIG_IGN), (signal.SIGTERM, self._told))
        ]

    def __exit__(self, *exception: object) -> None:
        for number, action in self._before:
            signal.signal(number, action)

    def _told(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(128 + number)
        write_line(f"rank {self._rank}: it ends when rank 0 does; a second signal ends it at once")


def _connect(meeting: Meeting, rank: int, purpose: Purpose, until: float) -> socket.socket:
    where = f"{meeting.host} port {meeting.port}"
    try:
        return connect((meeting.host, meeting.port), meeting.secret, rank, purpose, until)
    except OSError as error:
        raise RankError(
            rank,
            f"cannot reach rank 0 at {where}: {error.strerror or error}; name an address that all machines reach with "
            "--control HOST:PORT",
        ) from error
    except StrangerError as error:
        raise RankError(rank, f"asked {where} for rank 0, and does not trust who answers: {error}") from error


def _numbers(data: bytes | bytearray, group: int, end: int) -> list[int]:
    """Block ids, as int32."""
    if not data or len(data) % (4 * group):
        raise HostError(f"{len(data)} bytes of block ids, expected int32 numbers in groups of {group}")
    ids = np.frombuffer(data, np.int32)
    if ids.min() < 0 or ids.max() >= end:
        raise HostError(f"block ids are {ids.min()} to {ids.max()}, expected 0 to {end - 1}")
    numbers: list[int] = ids.tolist()
    return numbers
