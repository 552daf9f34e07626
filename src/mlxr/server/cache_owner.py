"""Whose blocks a request may find in the prefix cache: those of its own API key.

A hit tells that somebody has sent the same text (`cached_tokens`, and the time to the first token). So the key goes
into the digests of all blocks, in memory and in the tiers, and what one key's requests left is found by that key alone.
"""

from contextvars import ContextVar
from hashlib import blake2b

_OWNER: ContextVar[str] = ContextVar("cache_owner", default="")
"""Of the request that this task answers; empty where the server asks for no keys."""


def own_blocks_of(key: bytes | None) -> None:
    """From now on, this task and those that it starts are a request with this key; None: no key is asked for."""
    _OWNER.set("" if key is None else blake2b(key, digest_size=16, person=b"mlxr-cache-key").hexdigest())


def owner() -> str:
    """Whose request this task answers; empty where the server asks for no keys."""
    return _OWNER.get()


def owned(salt: str) -> str:
    """The salt of a request's prompts, from that which the client sent: it differs between keys."""
    return f"{whose}:{salt}" if (whose := owner()) else salt
