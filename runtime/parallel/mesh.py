"""Connections between the ranks of a model, for rows: each rank to those of its stage, and to its neighbours' stages.

MLX's ring passes each message through a thread of its own and several copies. Two programs that send and receive by
themselves exchange the sums of a decode step in a tenth of the time.
"""

import contextlib
import logging
import secrets
import socket
import struct
import time
from collections.abc import Mapping, Sequence

import numpy as np

from mlxr.compiler.artifact import RankPosition
from mlxr.compiler.errors import RankError
from mlxr.runtime.hosts.exchange import Floats, Wires
from mlxr.runtime.parallel.handshake import SECRET_BYTES, StrangerError, check_proof, connect, seconds_left
from mlxr.runtime.parallel.join import World, gather_bytes
from mlxr.runtime.parallel.shared_memory import SharedMemory

_LOG = logging.getLogger(__name__)

_CONNECT_S = 30.0
_LOOK_S = 0.001
_BUFFER_BYTES = 400_000
_TOLD = struct.Struct(f"<H{SECRET_BYTES}s")


class Mesh:
    """The sockets of a rank."""

    def __init__(self, place: RankPosition, world: World, links: Mapping[int, socket.socket]) -> None:
        """Takes over sockets; see `connect`."""
        self._place, self._world, self._links = place, world, dict(links)
        self._shared: SharedMemory | None = None

    @classmethod
    def connect(cls, place: RankPosition, world: World) -> "Mesh | None":
        """Connects the ranks; all do it at the same time.

        Args:
            place: of this rank.
            world: all ranks, with hosts.

        Returns:
            None: some ranks cannot reach each other; rank 0 has said so on standard error.
        """
        links: dict[int, socket.socket] = {}
        until = time.monotonic() + _CONNECT_S
        gather = gather_bytes(world.group)
        with contextlib.ExitStack() as stack:
            listener, port = None, 0
            with contextlib.suppress(OSError):
                listener = stack.enter_context(socket.create_server((world.hosts[place.rank], 0), backlog=place.size))
                port = listener.getsockname()[1]
            told = [_TOLD.unpack(data) for data in gather(_TOLD.pack(port, secrets.token_bytes(SECRET_BYTES)))]
            deaf = [rank for rank, (port, _) in enumerate(told) if not port]
            if listener is not None and not deaf:
                addresses = [(host, port) for host, (port, _) in zip(world.hosts, told, strict=True)]
                with contextlib.suppress(OSError, StrangerError):
                    _connect(place, addresses, told[0][1], listener, links, until)
        connected = gather(bytes([links.keys() == partners(place)]))
        if missing := deaf or [rank for rank in range(place.size) if connected[rank] == b"\0"]:
            for link in links.values():
                link.close()
            if place.rank == 0:
                names = ", ".join(f"rank {rank} ({world.hosts[rank]})" for rank in missing)
                cannot = "listen at any port" if deaf else "reach all other ranks over TCP"
                _LOG.warning(
                    "note: %s cannot %s, so rows go through MLX, which takes longer; let ranks connect to each other "
                    "at any port",
                    names,
                    cannot,
                )
            return None
        return cls(place, world, links)

    def wires(self, shared_bytes: int) -> Wires:
        """For a program; all ranks call it at the same time.

        Args:
            shared_bytes: memory of this rank that the others of its stage see if all are on one machine.
        """
        place, machines = self._place, self._world.machines
        stage = range(place.stage * place.tensor, (place.stage + 1) * place.tensor)
        together = place.tensor > 1 and len({machines[rank] for rank in stage}) == 1
        self._shared = SharedMemory(
            shared_bytes, place.rank, stage if together else (), gather_bytes(self._world.group)
        )
        files = {rank: link.fileno() for rank, link in self._links.items()}
        return Wires(
            sockets=tuple(files.get(rank, -1) for rank in stage),
            previous=files[place.rank - place.tensor] if place.stage else -1,
            next=-1 if place.in_last_stage else files[place.rank + place.tensor],
            names={file: rank for rank, file in files.items()},
            memory=self._shared.addresses,
        )

    def gather(self, x: Floats | None, bounds: Sequence[int], out: Floats) -> None:
        """See `Collectives.gather`.

        Raises:
            HostError: a rank was lost.
        """
        place, first = self._place, self._place.size - self._place.tensor
        if place.rank:
            if x is not None and x.size:
                self._send(0, np.ascontiguousarray(x))
            return
        for t in range(place.tensor):
            columns = out[:, bounds[t] : bounds[t + 1]]
            if first + t == 0:
                if x is not None:
                    columns[:] = x
            elif columns.size:
                rows = np.empty(columns.shape, np.float32)
                self._receive(first + t, rows)
                columns[:] = rows

    def _send(self, rank: int, rows: Floats) -> None:
        try:
            self._links[rank].sendall(rows.data.cast("B"))
        except OSError as error:
            raise RankError(self._place.rank, f"lost rank {rank}: {error.strerror or error}") from error

    def _receive(self, rank: int, rows: Floats) -> None:
        """Waits for rows. They come soon, and to sleep until then would take longer than most messages."""
        view, start, link = rows.data.cast("B"), 0, self._links[rank]
        patience = time.monotonic() + _LOOK_S
        while start < len(view):
            try:
                size = link.recv_into(view[start:], 0, socket.MSG_DONTWAIT if time.monotonic() < patience else 0)
            except BlockingIOError:
                continue
            except OSError as error:
                raise RankError(self._place.rank, f"lost rank {rank}: {error.strerror or error}") from error
            if not size:
                raise RankError(self._place.rank, f"lost rank {rank}: it has ended the connection")
            start += size


def _connect(
    place: RankPosition,
    addresses: Sequence[tuple[str, int]],
    secret: bytes,
    listener: socket.socket,
    links: dict[int, socket.socket],
    until: float,
) -> None:
    """Connects to lower ranks, then accepts higher ones: rank 0 accepts at once, and so the others come to it, too."""
    missing = partners(place)
    for rank in sorted(rank for rank in missing if rank < place.rank):
        links[rank] = _tuned(connect(addresses[rank], secret, place.rank, "rows", until))
    while links.keys() != missing:
        listener.settimeout(seconds_left(until))
        link = _tuned(listener.accept()[0])
        try:
            rank, purpose = check_proof(link, secret)
        except StrangerError:
            link.close()
            continue
        if purpose != "rows" or rank not in missing or rank < place.rank:
            link.close()
            continue
        if rank in links:
            links[rank].close()  # it connects again, as it does where it has not got our answer
        links[rank] = link


def _tuned(link: socket.socket) -> socket.socket:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    return link


def partners(place: RankPosition) -> set[int]:
    """The ranks that a rank exchanges rows with."""
    stage = range(place.stage * place.tensor, (place.stage + 1) * place.tensor)
    beside = {place.rank - place.tensor, place.rank + place.tensor} & set(range(place.size))
    last = set(range(place.size - place.tensor, place.size))
    ends = last if place.rank == 0 else {0} if place.rank in last else set()
    return (set(stage) | beside | ends) - {place.rank}
