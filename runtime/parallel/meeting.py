"""How ranks that have joined for collectives find rank 0's control channel: through one collective, at the start."""

import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from mlxr.compiler.errors import HostError, RequestError
from mlxr.runtime.parallel.handshake import SECRET_BYTES
from mlxr.runtime.parallel.loss import LOST_CODE, write_line

_MOST_BYTES = 272
Share = Callable[[bytes], bytes]
"""A collective that all ranks call: it returns the bytes that rank 0 gives. All give equally many."""


class Meeting(NamedTuple):
    """Where rank 0 listens, and the secret of the group."""

    host: str
    port: int
    secret: bytes


def share_bytes(world: "mx.distributed.Group", seconds: float = 60.0) -> Share:
    """The collective of a group: a sum to which only rank 0 gives anything, because every backend has sums.

    No heartbeat watches it yet, and MLX may wait for ever for a rank that has ended or is stopped just then: a process
    that waits too long ends, with the code after which it may be started again.

    Args:
        world: the group.
        seconds: how long the collective may take.
    """

    def give_up() -> None:
        write_line(f"rank {world.rank()}: error: a rank did not meet the others within {seconds:g} s; this rank ends")
        os._exit(LOST_CODE)

    def share(data: bytes) -> bytes:
        own = np.frombuffer(data, np.uint8).astype(np.int32)
        limit = threading.Timer(seconds, give_up)
        limit.daemon = True
        limit.start()
        try:
            total: Any = mx.distributed.all_sum(mx.array(own if world.rank() == 0 else np.zeros_like(own)), group=world)
            return np.array(total).astype(np.uint8).tobytes()
        finally:
            limit.cancel()

    return share


def listen(share: Share, control: str | None = None) -> tuple[socket.socket, Meeting]:
    """Rank 0: listens, and tells the others where.

    Args:
        share: of the group.
        control: HOST:PORT at which to listen, and by which the others reach it; None: the address that MLX's own
            environment has for rank 0, any free port.

    Raises:
        RequestError: `control` is not HOST:PORT.
        HostError: nobody can listen there.
    """
    host, port = _parsed(control) if control else (own_address(), 0)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=256)
    except OSError as error:
        raise HostError(
            f"rank 0 cannot listen at {host} port {port} for the other ranks: {error.strerror or error}; name another "
            "address of this machine with --control HOST:PORT"
        ) from error
    meeting = Meeting(host, listener.getsockname()[1], secrets.token_bytes(SECRET_BYTES))
    name = host.encode()
    data = meeting.secret + meeting.port.to_bytes(2, "little") + len(name).to_bytes(2, "little") + name
    if len(data) > _MOST_BYTES:
        raise RequestError(f"the name {host!r} of rank 0's machine is too long: name its address with --control")
    share(data.ljust(_MOST_BYTES, b"\0"))
    return listener, meeting


def find(share: Share) -> Meeting:
    """The other ranks: learn where rank 0 listens."""
    data = share(bytes(_MOST_BYTES))
    secret, rest = data[:SECRET_BYTES], data[SECRET_BYTES:]
    port, size = int.from_bytes(rest[:2], "little"), int.from_bytes(rest[2:4], "little")
    return Meeting(rest[4 : 4 + size].decode(errors="replace"), port, secret)


def own_address() -> str:
    """The address by which the other ranks reach rank 0, as far as the environment of MLX's launcher says.

    Raises:
        HostError: the hostfile cannot be read.
    """
    if path := os.environ.get("MLX_HOSTFILE"):
        try:
            ring = json.loads(Path(path).read_text(encoding="utf-8"))
            first = ring[0][0] if isinstance(ring[0], list) else ring[0]
            return str(first).rpartition(":")[0].strip("[]")
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise HostError(f"{path}: the hostfile names no address of rank 0: {error}") from error
    if coordinator := os.environ.get("MLX_JACCL_COORDINATOR"):
        return coordinator.rpartition(":")[0].strip("[]")
    return os.environ.get("NCCL_HOST_IP") or socket.gethostname()


def _parsed(control: str) -> tuple[str, int]:
    host, _, port = control.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise RequestError(
            f"--control is {control!r}, expected HOST:PORT, such as 10.0.0.1:7000 (port 0: any free one)"
        )
    return host.strip("[]"), int(port)
