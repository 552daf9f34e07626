"""All ranks come to rank 0 before MLX connects them: over plain TCP, without MLX.

MLX's own connecting cannot wait for late ranks: ring's ranks accept for ever, hold the GIL meanwhile, and give up after
31 s where they connect; nobody says who is missing. Then all ranks are there, and MLX connects them at
once. They also learn here which of them share a machine.

A rank says MAGIC, its rank, the size that it was told, and its machine; rank 0 answers with a count of bytes and these
bytes: the machines of all ranks, or after ERROR a message. A rank that goes away while others wait may come again.
"""

import contextlib
import hashlib
import logging
import selectors
import socket
import struct
import time
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.runtime.parallel.launch import RankLaunch

_LOG = logging.getLogger(__name__)

_HELLO = struct.Struct("<8sII16s")
_ANSWER = struct.Struct("<BI")
_MAGIC = b"MLXRJOIN"
_ERROR = 1
_MOST_BYTES = 1 << 20
_SAY_AFTER_S, _SAY_EVERY_S, _LOOK_EVERY_S = 5.0, 30.0, 0.2
_MACHINE_BYTES = 16


def wait_for_ranks(launch: RankLaunch, wait_s: float) -> tuple[bytes, ...]:
    """Waits for all ranks.

    Args:
        launch: with an address.
        wait_s: for how long.

    Returns:
        The machine of each rank, 16 bytes that are the same for ranks of the same machine.

    Raises:
        HostError: a rank did not come in time, or was started with another number of ranks; on all ranks that came.
    """
    assert launch.address is not None, "MPI's processes start together"
    until = time.monotonic() + wait_s
    machines = _receive_all(launch, until, wait_s) if launch.rank == 0 else _visit(launch, until, wait_s)
    return tuple(machines[i : i + _MACHINE_BYTES] for i in range(0, len(machines), _MACHINE_BYTES))


def this_machine() -> bytes:
    """16 bytes that name this machine, until it is started again; containers with names of their own are machines."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8")
    except OSError:
        boot = ""
    return hashlib.sha256(f"{socket.gethostname()} {boot}".encode()).digest()[:_MACHINE_BYTES]


def _receive_all(launch: RankLaunch, until: float, wait_s: float) -> bytes:
    """Rank 0: a connection of each other rank; then the answer to all."""
    assert launch.address is not None
    machines = {0: this_machine()}
    ranks: dict[socket.socket, int] = {}
    said = time.monotonic() + _SAY_AFTER_S - _SAY_EVERY_S
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(launch))
        waiting = stack.enter_context(selectors.DefaultSelector())
        waiting.register(listener, selectors.EVENT_READ, listener)

        def forget(connection: socket.socket) -> None:
            waiting.unregister(connection)
            connection.close()
            machines.pop(ranks.pop(connection, -1), None)

        while len(machines) < launch.size:
            now = time.monotonic()
            missing = _named(launch, [rank for rank in range(launch.size) if rank not in machines])
            if now > until:
                message = f"{missing} did not come within {wait_s:g} s; start all ranks, with the same hostfile"
                _answer(ranks, message.encode(), _ERROR)
                raise HostError(message)
            if now > said + _SAY_EVERY_S:
                _LOG.warning("waiting for %s", missing)
                said = now
            for key, _ in waiting.select(min(_LOOK_EVERY_S, max(0.01, until - now))):
                connection = key.data
                if connection is listener:
                    connection = stack.enter_context(listener.accept()[0])
                    connection.settimeout(1)
                    waiting.register(connection, selectors.EVENT_READ, connection)
                    continue
                hello = b"" if connection in ranks else _read(connection, _HELLO.size)
                magic, rank, size, machine = _HELLO.unpack(hello) if hello else (b"", 0, 0, b"")
                if magic != _MAGIC:  # somebody who left, or who is no rank
                    forget(connection)
                elif size != launch.size or not 0 < rank < size or rank in machines:
                    message = (
                        f"rank {rank} of {size} came to rank 0 of {launch.size}"
                        + (", where it is already" if rank in machines else "")
                        + "; start each rank once, with the same hostfile"
                    )
                    _answer({**ranks, connection: rank}, message.encode(), _ERROR)
                    raise HostError(message)
                else:
                    ranks[connection], machines[rank] = rank, machine
        # MLX listens at the same address. Followers connect there when they have the answer.
        waiting.unregister(listener)
        listener.close()
        everything = b"".join(machines[rank] for rank in range(launch.size))
        _answer(ranks, everything, 0)
        return everything


def _visit(launch: RankLaunch, until: float, wait_s: float) -> bytes:
    """Another rank: asks rank 0 again and again until it answers."""
    assert launch.address is not None
    host, port = launch.address
    reason = ""
    while time.monotonic() < until:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                connection.sendall(_HELLO.pack(_MAGIC, launch.rank, launch.size, this_machine()))
                # Rank 0 may have started later, and then waits for longer. It says who is missing.
                connection.settimeout(until - time.monotonic() + wait_s + 5)
                head = _read(connection, _ANSWER.size)
                error, length = _ANSWER.unpack(head) if head else (0, 0)
                body = _read(connection, length) if length <= _MOST_BYTES else b""
            if error and body:
                raise HostError(body.decode(errors="replace"))
            if len(body) == launch.size * _MACHINE_BYTES:
                return body
            reason = "it closed the connection"
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(0.2)
    raise HostError(
        f"rank 0 did not answer rank {launch.rank} at {host}:{port} within {wait_s:g} s ({reason}); "
        "start all ranks, and give an address of rank 0 that all of them reach"
    )


def _listen(launch: RankLaunch) -> socket.socket:
    assert launch.address is not None
    host, port = launch.address
    if launch.backend == "nccl":
        host = ""  # as MLX does: NCCL_HOST_IP is how others reach this machine
    try:
        return socket.create_server((host, port), backlog=launch.size)
    except OSError as error:
        raise HostError(f"rank 0 cannot listen at {host}:{port}: {error.strerror or error}; choose another") from error


def _answer(ranks: dict[socket.socket, int], body: bytes, error: int) -> None:
    for connection in ranks:
        with contextlib.suppress(OSError):
            connection.sendall(_ANSWER.pack(error, len(body)) + body)


def _read(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes; none if the other side left or is slower than the connection's timeout."""
    data = b""
    with contextlib.suppress(OSError):
        while len(data) < count and (part := connection.recv(count - len(data))):
            data += part
    return data if len(data) == count else b""


def _named(launch: RankLaunch, ranks: list[int]) -> str:
    names = [f"{rank} ({launch.names[rank]})" if launch.names[rank] else str(rank) for rank in ranks]
    return ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(names)
