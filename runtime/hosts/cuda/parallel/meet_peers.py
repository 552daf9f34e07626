"""How the ranks of a stage find out whether their cards see each other's memory, and where it is.

Each allocates memory, gives the others a handle of it, opens theirs, and writes a few bytes into each: what the driver
allows does not always arrive. All come to the same conclusion.
"""

import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.parallel.peer_memory import (
    HANDLE_BYTES,
    PeerMemory,
    open_memory,
    read_memory,
    write_memory,
)

SETTING = "MLXR_PEER_MEMORY"
"""The environment variable: 0 leaves sums to MLX."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_BYTES, _REASON_BYTES = 16, 200
_PROBE_BYTES = 16

Floats = npt.NDArray[np.float32]
AllSum = Callable[[Floats, Floats], object]
"""Writes to the second array the sum of the first over the ranks of the stage; waits."""


class NoPeersError(HostError):
    """The cards of a stage do not see each other's memory, on any of its ranks; the message says why."""


class _NotWantedError(HostError):
    """The user wants sums to go another way."""


def meet_peers(all_sum: AllSum, rank: int, ranks: int, size_bytes: int) -> tuple[int, ...]:
    """Allocates memory and opens the others'; all ranks of a stage do it at the same time.

    Args:
        all_sum: of the stage.
        rank: this process's, within the stage.
        ranks: of the stage.
        size_bytes: of the memory of each rank.

    Returns:
        Of each rank, the address of its memory as this process's GPU sees it. All memory is zero.

    Raises:
        NoPeersError: on all ranks, if any of them cannot.
    """
    own: PeerMemory | None = None

    def allocate() -> bytes:
        nonlocal own
        if os.environ.get(SETTING) == "0":
            raise _NotWantedError(f"{SETTING}=0")
        own = PeerMemory(max(size_bytes, _PROBE_BYTES * ranks))
        return own.handle()

    handles = _each(all_sum, rank, ranks, allocate, HANDLE_BYTES)
    assert own is not None, "allocated, or all ranks have raised"
    memory, addresses = own, [own.address] * ranks

    def open_others() -> bytes:
        for other, handle in enumerate(handles):
            if other != rank:
                addresses[other] = open_memory(handle)
                write_memory(addresses[other] + _PROBE_BYTES * rank, _probe(rank, other))
        return b""

    _each(all_sum, rank, ranks, open_others)

    def check() -> bytes:
        written = read_memory(memory.address, _PROBE_BYTES * ranks)
        for other in range(ranks):
            if other != rank and written[_PROBE_BYTES * other :][:_PROBE_BYTES] != _probe(other, rank):
                raise HostError(f"what rank {other} of the stage wrote to its card's memory did not arrive")
        memory.clear()
        return b""

    _each(all_sum, rank, ranks, check)
    return tuple(addresses)


def _each(all_sum: AllSum, rank: int, ranks: int, do: Callable[[], bytes], size: int = 0) -> list[bytes]:
    """What `do` gives on each rank.

    Raises:
        NoPeersError: it has failed on a rank, or a rank is on another machine.
    """
    try:
        result, reason = do(), ""
    except _NotWantedError as error:
        result, reason = bytes(size), str(error)
    except HostError as error:
        result, reason = bytes(size), f"rank {rank} of the stage: {error}"
    own = _machine() + reason.encode()[:_REASON_BYTES].ljust(_REASON_BYTES, b"\0") + result
    sent = np.zeros((ranks, len(own)), np.float32)
    sent[rank] = np.frombuffer(own, np.uint8)
    received = np.empty_like(sent)
    all_sum(sent, received)
    rows = [row.astype(np.uint8).tobytes() for row in received]
    if len({row[:_MACHINE_BYTES] for row in rows}) > 1:
        raise NoPeersError("the cards of a stage are in several machines")
    for row in rows:
        if why := row[_MACHINE_BYTES:][:_REASON_BYTES].rstrip(b"\0").decode(errors="replace"):
            raise NoPeersError(why)
    return [row[_MACHINE_BYTES + _REASON_BYTES :] for row in rows]


def _machine() -> bytes:
    try:
        name = _BOOT.read_text("utf-8")
    except OSError:
        name = socket.gethostname()
    return hashlib.sha256(name.encode()).digest()[:_MACHINE_BYTES]


def _probe(writer: int, reader: int) -> bytes:
    return hashlib.sha256(bytes([writer, reader])).digest()[:_PROBE_BYTES]
