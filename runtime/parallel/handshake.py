"""How both sides of a connection prove that they are of the same group: they know a secret, which is never sent.

The secret comes through the collectives, once, at the start. A connection that a stranger makes is refused. What
follows is neither encrypted nor signed, and the collectives' own bytes are not either: ranks belong into a network of
their own.
"""

import hmac
import secrets
import socket
import struct
from typing import Literal

SECRET_BYTES = 16
PROOF_SECONDS = 10.0
"""How long one side waits for the other one's proof."""

Purpose = Literal["control", "heartbeat", "rows"]
_PURPOSES: tuple[Purpose, ...] = ("control", "heartbeat", "rows")
_CLAIM = struct.Struct("<II")
_DIGEST_BYTES = 32


class StrangerError(Exception):
    """The other side is not of the group, or no rank at all."""


def prove(link: socket.socket, secret: bytes, rank: int, purpose: Purpose, seconds: float = PROOF_SECONDS) -> None:
    """The side that connects: says who it is.

    Args:
        link: connected to rank 0, or, for rows, to any other.
        secret: of the group.
        rank: of this process.
        purpose: what the connection is for.
        seconds: how long to wait for the other side, each time.

    Raises:
        StrangerError: the other side is not rank 0 of the group.
    """
    link.settimeout(seconds)
    try:
        challenge, own = _read(link, SECRET_BYTES), secrets.token_bytes(SECRET_BYTES)
        claim = _CLAIM.pack(rank, _PURPOSES.index(purpose))
        link.sendall(claim + own + _proof(secret, b"follower", challenge, own, claim))
        answer = _read(link, _DIGEST_BYTES)
    except OSError as error:
        raise StrangerError(str(error.strerror or error)) from error
    if not hmac.compare_digest(answer, _proof(secret, b"leader", challenge, own, claim)):
        raise StrangerError("it does not know the group's secret")
    link.settimeout(None)


def check_proof(link: socket.socket, secret: bytes, seconds: float = PROOF_SECONDS) -> tuple[int, Purpose]:
    """The side that listens: which rank has connected, and what for.

    Args:
        link: just accepted.
        secret: of the group.
        seconds: how long to wait for the other side, each time.

    Raises:
        StrangerError: it is no rank of the group.
    """
    link.settimeout(seconds)
    try:
        challenge = secrets.token_bytes(SECRET_BYTES)
        link.sendall(challenge)
        claim, other = _read(link, _CLAIM.size), _read(link, SECRET_BYTES)
        proof = _read(link, _DIGEST_BYTES)
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


def _read(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = link.recv(count - len(data))
        if not piece:
            raise StrangerError("it has ended the connection")
        data += piece
    return data
