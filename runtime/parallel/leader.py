"""Rank 0's side of the control channel: a connection to each of the other ranks, and what happens when one is lost."""

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from mlxr.compiler.errors import HostError
from mlxr.runtime.parallel.connection import Connection, ConnectionEndedError, MessageKind
from mlxr.runtime.parallel.handshake import StrangerError, check_proof, seconds_left
from mlxr.runtime.parallel.heartbeat import Heartbeat
from mlxr.runtime.parallel.identity import Identity, check_same
from mlxr.runtime.parallel.loss import Loss
from mlxr.runtime.parallel.meeting import Share, listen

_CONNECT_SECONDS = 60.0


class Leader:
    """Connections to ranks 1 to size - 1. One thread sends; the heartbeat's thread ends the process after a loss.

    Attributes:
        loss: whether a rank was lost.
        identities: of all ranks.
    """

    def __init__(
        self,
        share: Share,
        size: int,
        same: Mapping[str, str],
        *,
        control: str | None = None,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """Waits for all ranks to connect, and checks that they are of one kind.

        Args:
            share: a collective of the group.
            size: how many ranks there are.
            same: what must be the same on all ranks, by the names of `identity.FIXES`.
            control: HOST:PORT at which to listen; None: chosen.
            end: ends the process after a loss.

        Raises:
            HostError: a rank does not come, or differs. The others are told.
        """
        self.loss = Loss(end)
        self.identities = {0: Identity.here(0)}
        self._has_closed = False
        listener, meeting = listen(share, control)
        with listener:
            links = _accept(listener, meeting.secret, size)
        self._connections = {rank: Connection(links[rank, "control"], f"rank {rank}") for rank in range(1, size)}
        self._heartbeat = Heartbeat({rank: links[rank, "heartbeat"] for rank in range(1, size)}, self._lost)
        with self.refusing():
            facts = self._collect()
            for rank, told in facts.items():
                self.identities[rank] = Identity.of(rank, told)
            check_same(same, facts, self.names)
        for rank, identity in self.identities.items():
            if rank:
                self._connections[rank].peer = str(identity)
                answer = self.identities[0].facts | {"local_size": self._local_size(identity)}
                self._send(rank, partial(Connection.send_facts, facts=answer))

    @property
    def names(self) -> dict[int, str]:
        """Of all ranks, for people."""
        return {rank: str(self.identities.get(rank, f"rank {rank}")) for rank in (0, *self._connections)}

    @property
    def ranks(self) -> tuple[int, ...]:
        """The other ranks."""
        return tuple(self._connections)

    @property
    def local_size(self) -> int:
        """Ranks on this machine."""
        return self._local_size(self.identities[0])

    def _local_size(self, identity: Identity) -> int:
        return sum(other.machine == identity.machine for other in self.identities.values())

    def agree(self, blocks: int, same: Mapping[str, object]) -> int:
        """The blocks that the arena of every rank gets: as many as fit into the smallest memory.

        Args:
            blocks: how many fit here.
            same: what must be the same on all ranks, by the names of `identity.FIXES`.

        Raises:
            HostError: a rank cannot take part, or differs. The others are told.
            RankLostError: a rank was lost.
        """
        with self.refusing():
            facts = self._collect()
            check_same(same, facts, self.names)
            least = min(blocks, *(_count(facts[rank], "blocks", self.names[rank]) for rank in facts))
        for rank in self._connections:
            self._send(rank, partial(Connection.send_facts, facts={"blocks": least}))
        return least

    def wait_until_ready(self) -> tuple[list[tuple[int, int]], list[str]]:
        """Waits until all ranks have loaded; `block_bytes` and `slot_bytes` of each, and notes for people.

        Raises:
            HostError: a rank cannot load. The others are told.
            RankLostError: a rank was lost.
        """
        with self.refusing():
            facts = self._collect()
            block_bytes, slot_bytes = (
                [_count(told, key, self.names[rank], least=0) for rank, told in facts.items()]
                for key in ("block_bytes", "slot_bytes")
            )
        for rank in self._connections:
            self._send(rank, partial(Connection.send_facts, facts={}))
        sizes = list(zip(block_bytes, slot_bytes, strict=True))
        return sizes, [f"rank {rank}: {note}" for rank, told in facts.items() for note in told.get("notes", ())]

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """A `with` block: any error in it is sent to all ranks, which end with it."""
        try:
            yield
        except BaseException as error:
            if self.loss.error is None and not self._has_closed:
                reason = str(error) or type(error).__name__
                self.refuse(reason if reason.startswith("rank ") else f"{self.names[0]}: {reason}")
            raise

    def _collect(self) -> dict[int, dict[str, Any]]:
        """The answer of each rank, in their order. The first error that comes is raised, with its rank's name."""
        told = {}
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    selector.unregister(key.fileobj)
                    rank = key.data
                    try:
                        told[rank] = self._connections[rank].receive_facts()
                    except ConnectionEndedError as error:
                        self._fail(rank, error)
                    except HostError as error:
                        raise HostError(f"{self.names[rank]}: {error}") from error
        return {rank: told[rank] for rank in self._connections}

    def send(self, kind: MessageKind, data: bytes = b"", rank: int | None = None) -> None:
        """Sends a message to all ranks, or to one.

        Raises:
            RankLostError: a rank was lost.
        """
        self.loss.check()
        for each in self._connections if rank is None else (rank,):
            self._send(each, lambda link: link.send(kind, data))

    def receive(self, rank: int, kind: MessageKind, size: int) -> bytearray:
        """Waits for a message of a rank.

        Args:
            rank: the rank.
            kind: what it must be.
            size: how many bytes it must have.

        Raises:
            HostError: the rank reports an error, or sends something else.
            RankLostError: the rank was lost.
        """
        try:
            got, data = self._connections[rank].receive(max(size, 1 << 16))
        except ConnectionEndedError as error:
            self._fail(rank, error)
        if got == MessageKind.ERROR:
            raise HostError(f"{self.names[rank]}: {bytes(data).decode(errors='replace')}")
        if got != kind or len(data) != size:
            self.fail(f"{self.names[rank]} sent {len(data)} bytes of {got.name}, expected {size} of {kind.name}")
        return data

    def fail(self, reason: str) -> NoReturn:
        """Ends the group, because ranks no longer do the same.

        Raises:
            RankLostError: always; the process ends soon.
        """
        self.loss.wait_for_reason()
        if self.loss.error is None:
            self._broken(reason)
        self.loss.check()
        raise AssertionError("the group is broken")

    def refuse(self, reason: str) -> None:
        """Tells all ranks why they cannot go on, before there were any steps; they end with an error."""
        self._heartbeat.end(reason)
        for connection in self._connections.values():
            connection.send_error(reason)
        self._has_closed = True

    def close(self) -> None:
        """Lets all ranks end; waits for the end of this process if the group is broken."""
        self.loss.wait_for_end()
        if self._has_closed:
            return
        self._has_closed = True
        self._heartbeat.end()
        for connection in self._connections.values():
            try:
                connection.send(MessageKind.CLOSE)
            except ConnectionEndedError:
                continue

    def _send(self, rank: int, message: Callable[[Connection], None]) -> None:
        try:
            message(self._connections[rank])
        except ConnectionEndedError as error:
            self._fail(rank, error)

    def _fail(self, rank: int, error: Exception) -> NoReturn:
        self.fail(f"{self.names[rank]}: its control connection broke: {error}")

    def _lost(self, rank: int, reason: str) -> None:
        """Runs in the heartbeat's thread."""
        if rank < 0:
            self._broken(f"rank 0 ends: {reason}")
        else:
            self._broken(f"{self.names[rank]} was lost: {reason}", but=rank)

    def _broken(self, reason: str, but: int | None = None) -> None:
        def tell_others() -> None:
            self._heartbeat.report(reason, but)
            for connection in self._connections.values():
                connection.shut()  # a thread that waits for an answer gets an error

        self.loss.tell(f"{reason}; ask again when the model runs again", f"error: {reason}", tell_others)


def _accept(listener: socket.socket, secret: bytes, size: int) -> dict[tuple[int, str], socket.socket]:
    """The connections of all ranks, two of each: strangers are let go.

    Raises:
        HostError: not all come in time.
    """
    links: dict[tuple[int, str], socket.socket] = {}
    until = time.monotonic() + _CONNECT_SECONDS
    while len(links) < 2 * (size - 1):
        try:
            listener.settimeout(seconds_left(until))
            link, _ = listener.accept()
        except TimeoutError:
            absent = sorted(
                {rank for rank in range(1, size)} - {rank for rank, purpose in links if purpose == "heartbeat"}
            )
            raise HostError(
                f"rank {', '.join(map(str, absent))} cannot reach rank 0 at {listener.getsockname()[0]}: name an "
                "address that all machines reach with --control HOST:PORT"
            ) from None
        try:
            rank, purpose = check_proof(link, secret)
        except StrangerError:
            link.close()
            continue
        if not 0 < rank < size:
            link.close()
            continue
        if (rank, purpose) in links:
            links[rank, purpose].close()  # it connects again, as it does where it has not got our answer
        links[rank, purpose] = link
    return links


def _count(facts: Mapping[str, Any], key: str, name: str, least: int = 1) -> int:
    """A number that a rank tells."""
    if not isinstance(count := facts.get(key), int) or count < least:
        raise HostError(f"{name} tells {key} {count!r}, expected a number of at least {least}")
    return count
