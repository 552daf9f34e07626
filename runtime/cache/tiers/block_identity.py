"""What the bytes of a block depend on besides its tokens, and what gives them a meaning."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Self

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.arena_blocks import block_bytes
from mlxr.runtime.cache.block_hashes import NO_TOKEN

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
        stores: what a block has, then what a slot of states has, in order: for each store its name, layers, shape and
            type of a layer's row.
        block_bytes: bytes of one block.
        state_bytes: bytes of one slot of states; 0: the model keeps none.
    """

    model: str
    weights: str
    artifact: str
    host: str
    layout: str
    block_size: int
    stores: tuple[str, ...]
    block_bytes: int
    state_bytes: int = 0

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
        parts = [(part, part.shape[3:]) for part in geometry.of_group(0)]
        parts += [(part, part.shape[2:]) for part in geometry.of_group(None)]
        return cls(
            model=artifact.spec.name,
            weights=weights,
            artifact=artifact.digest,
            host=host,
            layout=geometry.layout,
            block_size=geometry.block_size,
            stores=tuple(
                f"{part.name} {part.num_layers} {'x'.join(map(str, row))} {part.dtype!s}" for part, row in parts
            ),
            block_bytes=block_bytes(geometry),
            state_bytes=block_bytes(geometry, None),
        )

    def data_bytes(self, tokens: Sequence[int]) -> int:
        """Bytes of a block with these tokens, or of a state that they name: a block within which it ends is with it."""
        if tokens[0] != NO_TOKEN:
            return self.block_bytes
        return self.state_bytes + (self.block_bytes if tokens[-1] != NO_TOKEN else 0)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes: a hash of all attributes, and of the format of files."""
        fields = asdict(self)
        if not self.state_bytes:  # so such files are those of earlier versions
            del fields["state_bytes"]
        text = json.dumps({"format": FORMAT.decode()} | fields, sort_keys=True)
        return hashlib.sha256(text.encode()).digest()[:16]

    @cached_property
    def folder_name(self) -> str:
        """A name for a folder of such blocks: begins as the model's name does, ends in the digest."""
        start = re.sub(r"[^A-Za-z0-9._]+", "-", self.model)[:40].strip("-.") or "model"
        return f"{start}-{self.digest.hex()}"
