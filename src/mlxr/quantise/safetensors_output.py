"""Writes safetensors files tensor by tensor, so that a model needs not fit into memory.

Source: https://huggingface.co/docs/safetensors (8 bytes of little-endian header size, the header in JSON, the data).
"""

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mlxr.quantise.block_quantiser import Bytes
from mlxr.quantise.gguf_output import Progress

_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "U8": 1}
SHARD_BYTES = 5 << 30


@dataclass(frozen=True)
class PlainTensor:
    """A tensor to be written.

    Attributes:
        name: its name.
        shape: outermost dimension first.
        dtype: as safetensors calls it.
        pieces: reads and converts it, when its turn comes: its bytes, in order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    pieces: Callable[[], Iterable[Bytes]]

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * _SIZES[self.dtype]


def write_safetensors(folder: Path, tensors: Sequence[PlainTensor], progress: Progress | None = None) -> None:
    """Writes a model's tensors into a folder: one file, or several with an index where they are large."""
    shards = _shards(tensors)
    names = [
        "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        for number in range(1, len(shards) + 1)
    ]
    total, done = sum(tensor.size_bytes for tensor in tensors), 0
    for name, shard in zip(names, shards, strict=True):
        done = _write_file(folder / name, shard, done, total, progress)
    if len(shards) > 1:
        placed = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=4), "utf-8")


def _shards(tensors: Sequence[PlainTensor]) -> list[list[PlainTensor]]:
    shards: list[list[PlainTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.size_bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size_bytes
    return shards


def _write_file(path: Path, tensors: Sequence[PlainTensor], done: int, total: int, progress: Progress | None) -> int:
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for tensor in tensors:
        offsets = [offset, offset + tensor.size_bytes]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        offset = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            if progress is not None:
                progress(tensor.name, done, total)
            size = 0
            for piece in tensor.pieces():
                size += stream.write(piece.data.cast("B"))
            assert size == tensor.size_bytes, f"{tensor.name}: {size} bytes, expected {tensor.size_bytes}"
            done += size
    return done
