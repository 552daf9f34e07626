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
        layout: order of the arena's first two dimensions.
        block_size: tokens of a block.
        stores: what a block has, in order: for each store its name, layers, shape and type of a layer's row.
        block_bytes: bytes of one block.
    """

    model: str
    weights: str
    artifact: str
    host: str
    layout: str
    block_size: int
    stores: tuple[str, ...]
    block_bytes: int

    @classmethod
    def of(cls, artifact: Artifact, weights: str, host: str, arena: Arena, group: int | None = 0) -> Self:
        """The identity of the blocks of an arena.

        Args:
            artifact: the compiled model.
            weights: the digest of its weights, see `weights_digest`.
            host: the name of the host that writes the arena.
            arena: whose blocks.
            group: whose layers'; None: a block is the state after its tokens.
        """
        geometry, outer = arena.geometry, 2 if group is None else 3
        return cls(
            model=artifact.spec.name,
            weights=weights,
            artifact=artifact.digest,
            host=host,
            layout=geometry.layout,
            block_size=geometry.block_size,
            stores=tuple(
                f"{part.name} {part.num_layers} {'x'.join(map(str, part.shape[outer:]))} {part.dtype!s}"
                for part in geometry.of_group(group)
            ),
            block_bytes=block_bytes(geometry, group),
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
