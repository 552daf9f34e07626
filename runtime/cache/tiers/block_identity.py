"""What the bytes of a block depend on besides its tokens, and what gives them a meaning."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Self

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.arena_blocks import block_bytes

FORMAT = b"mlxr-kv3"
"""The format of a block's file. Another format has other folders, so no version of MLXR reads files of another one."""


@dataclass(frozen=True)
class BlockIdentity:
    """Blocks of different identities are never exchanged.

    Attributes:
        model: the model's name, for people.
        weights: the digest of the weights (`weights_digest`).
        artifact: the digest of the artifact, which names spec and kernels.
        host: the name of the host: two programs of one artifact round differently.
        cache_dtype: element type of the arena.
        layout: order of the arena's first two dimensions.
        num_layers, block_size, num_kv_heads, head_dim: dimensions of a block.
        block_bytes: bytes of K and V of one block.
    """

    model: str
    weights: str
    artifact: str
    host: str
    cache_dtype: str
    layout: str
    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    block_bytes: int

    @classmethod
    def of(cls, artifact: Artifact, weights: str, host: str, arena: Arena) -> Self:
        """The identity of the blocks of an arena.

        Args:
            artifact: the compiled model.
            weights: the digest of its weights, see `weights_digest`.
            host: the name of the host that writes the arena.
            arena: whose blocks.
        """
        geometry = arena.geometry
        return cls(
            model=artifact.spec.name,
            weights=weights,
            artifact=artifact.digest,
            host=host,
            cache_dtype=str(geometry.dtype),
            layout=geometry.layout,
            num_layers=geometry.num_layers,
            block_size=geometry.block_size,
            num_kv_heads=geometry.num_kv_heads,
            head_dim=geometry.head_dim,
            block_bytes=block_bytes(geometry),
        )

    @cached_property
    def digest(self) -> bytes:
        """16 bytes: a hash of all attributes, and of the format of files."""
        text = json.dumps({"format": FORMAT.decode()} | asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).digest()[:16]

    @cached_property
    def folder_name(self) -> str:
        """A name for a folder of such blocks: begins as the model's name does, ends in the digest."""
        start = re.sub(r"[^A-Za-z0-9._]+", "-", self.model)[:40].strip("-.") or "model"
        return f"{start}-{self.digest.hex()}"
