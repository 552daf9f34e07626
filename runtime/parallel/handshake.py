"""How both sides of a connection prove that they are of the same group: they know a secret, which is never sent.

The secret comes through the collectives, once, at the start. A connection that a stranger makes is refused. What
follows is neither encrypted nor signed, and the collectives' own bytes are not either: ranks belong in a network of
their own.
"""

import hmac
import secrets
import socket
import struct
import time
from typing import Literal

SECRET_BYTES = 16
PROOF_SECONDS = 1.0
"""How long others wait for whoever has connected: a rank proves at once who it is, or connects again."""
_REACH_SECONDS = 10.0
"""How long an address may take to answer at all."""
_AGAIN_SECONDS = 0.05

Purpose = Literal["control", "heartbeat", "rows"]
_PURPOSES: tuple[Purpose, ...] = ("control", "heartbeat", "rows")
_CLAIM = struct.Struct("<II")
_DIGEST_BYTES = 32


class StrangerError(Exception):
    """The other side is not of the group, or no rank at all."""


def connect(address: tuple[str, int], secret: bytes, rank: int, purpose: Purpose, until: float) -> socket.socket:
    """Connects to a rank, and again while it takes this one for a stranger.

    Args:
        address: where the other rank listens.
        secret: of the group.
        rank: of this process.
        purpose: what the connection is for.
        until: when to give up, by `time.monotonic`.

    Raises:
        OSError: nobody can be reached there.
        StrangerError: who answers is not of the group.
    """
    while True:
        link = socket.create_connection(address, min(_REACH_SECONDS, seconds_left(until)))
        try:
            prove(link, secret, rank, purpose, until)
            return link
        except StrangerError:
            link.close()
            if time.monotonic() + _AGAIN_SECONDS > until:
                raise
            time.sleep(_AGAIN_SECONDS)


def prove(link: socket.socket, secret: bytes, rank: int, purpose: Purpose, until: float) -> None:
    """The side that connects: says who it is.

    Args:
        link: connected to rank 0, or, for rows, to any other.
        secret: of the group.
        rank: of this process.
        purpose: what the connection is for.
        until: when to give up, by `time.monotonic`.

    Raises:
        StrangerError: the other side is not of the group, or takes too long.
    """
    try:
        challenge, own = _read(link, SECRET_BYTES, until), secrets.token_bytes(SECRET_BYTES)
        claim = _CLAIM.pack(rank, _PURPOSES.index(purpose))
        link.sendall(claim + own + _proof(secret, b"follower", challenge, own, claim))
        answer = _read(link, _DIGEST_BYTES, until)
    except OSError as error:
        raise StrangerError(str(error.strerror or error)) from error
    if not hmac.compare_digest(answer, _proof(secret, b"leader", challenge, own, claim)):
        raise StrangerError("it does not know the group's secret")
    link.settimeout(None)


def check_proof(link: socket.socket, secret: bytes) -> tuple[int, Purpose]:
    """The side that listens: which rank has connected, and what for.

    Args:
        link: just accepted.
        secret: of the group.

    Raises:
        StrangerError: it is no rank of the group, or takes longer than `PROOF_SECONDS`.
    """
    until = time.monotonic() + PROOF_SECONDS
    try:
        challenge = secrets.token_bytes(SECRET_BYTES)
        link.sendall(challenge)
        claim, other = _read(link, _CLAIM.size, until), _read(link, SECRET_BYTES, until)
        proof = _read(link, _DIGEST_BYTES, until)
        rank, purpose = _CLAIM.unpack(claim)
        if not hmac.compare_digest(proof, _proof(secret, b"follower", challenge, other, claim)):
            raise StrangerError("it does not know the group's secret")
        if purpose >= len(_PURPOSES):
            raise StrangerError(f"it connects for purpose {purpose}")
        link.sendall(_proof(secret, b"leader", challenge, other, claim))
    except OSError as error:
        raise StrangerError(str(error.strerror or error)) from error
    link.settimeout(None)
    return rank, _PURPOSES[purpose]


def _proof(secret: bytes, side: bytes, challenge: bytes, other: bytes, claim: bytes) -> bytes:
    return hmac.digest(secret, side + challenge + other + claim, "sha256")


def seconds_left(until: float) -> float:
    """Seconds until a time of `time.monotonic`.

    Raises:
        TimeoutError: there are none.
    """
    if (seconds := until - time.monotonic()) <= 0:
        raise TimeoutError("timed out")
    return seconds


def _read(link: socket.socket, count: int, until: float) -> bytes:
    data = b""
    while len(data) < count:
        link.settimeout(seconds_left(until))
        piece = link.recv(count - len(data))
        if not piece:
            raise StrangerError("it has ended the connection")
        data += piece
    return data
