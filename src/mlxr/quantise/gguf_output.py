"""Writes GGUF files tensor by tensor, so that a model needs not fit into memory."""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.output_file import open_output
from mlxr.quantise.block_quantiser import Bytes, block_sizes, type_number

Progress = Callable[[str, int, int], None]
"""Called with the name of the next tensor, the bytes written and all bytes."""
ALIGNMENT = 32
_KINDS = {"u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q")}
"""Numbers and `struct` codes of the types of values."""
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file to be written.

    Attributes:
        name: its name.
        shape: outermost dimension first.
        format: a GGUF type, in small letters.
        pieces: reads and converts it, when its turn comes: its bytes, in order.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    pieces: Callable[[], Iterable[Bytes]]

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        elements, block_bytes = block_sizes(self.format)
        return prod(self.shape) // elements * block_bytes


def entry(value: Any, kind: str = "") -> bytes:
    """The type and value of an entry of metadata.

    Args:
        value: a string, a number, or a list of strings or numbers.
        kind: of a number or of a list's numbers: `u32`, `i32`, `f32`, `bool` or `u64`.
    """
    if isinstance(value, list):
        number = _KINDS[kind][0] if kind else _STRING
        body = struct.pack(f"<{len(value)}{_KINDS[kind][1]}", *value) if kind else b"".join(map(_text, value))
        return struct.pack("<IIQ", _ARRAY, number, len(value)) + body
    if not kind:
        return struct.pack("<I", _STRING) + _text(value)
    number, code = _KINDS[kind]
    return struct.pack(f"<I{code}", number, value)


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def write_gguf(
    path: Path,
    entries: Sequence[tuple[str, bytes]],
    tensors: Sequence[GgufTensor],
    progress: Progress | None = None,
    alignment: int = ALIGNMENT,
) -> int:
    """Writes a file, whole or not at all, and returns its size in bytes.

    Args:
        path: where.
        entries: keys, and their types and values.
        tensors: in the file's order.
        progress: told before each tensor.
        alignment: of tensors, as the metadata say.

    Raises:
        MlxrError: it cannot be written, or a tensor cannot be read.
    """
    header, total = _header(entries, tensors, alignment), gguf_bytes(entries, tensors, alignment)
    with open_output(path, total) as stream:
        done = stream.write(header)
        for tensor in tensors:
            if progress is not None:
                progress(tensor.name, done, total)
            size = 0
            for piece in tensor.pieces():
                assert piece.flags.c_contiguous, "pieces are bytes in order"
                size += stream.write(piece.data.cast("B"))
            assert size == tensor.size_bytes, f"{tensor.name}: {size} bytes, expected {tensor.size_bytes}"
            done += size + stream.write(bytes(padded(size, alignment) - size))
    return total


def gguf_bytes(entries: Sequence[tuple[str, bytes]], tensors: Sequence[GgufTensor], alignment: int = ALIGNMENT) -> int:
    """The size of a file with these."""
    return len(_header(entries, tensors, alignment)) + sum(padded(each.size_bytes, alignment) for each in tensors)


def _header(entries: Sequence[tuple[str, bytes]], tensors: Sequence[GgufTensor], alignment: int) -> bytes:
    parts = [file_keys.GGUF_MAGIC, struct.pack("<IQQ", 3, len(tensors), len(entries))]
    parts += [_text(key) + value for key, value in entries]
    offset = 0
    for tensor in tensors:
        shape = list(tensor.shape)
        while len(shape) > 1 and shape[0] == 1:  # as llama.cpp counts dimensions
            del shape[0]
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        parts += [_text(tensor.name), dimensions, struct.pack("<IQ", type_number(tensor.format), offset)]
        offset += padded(tensor.size_bytes, alignment)
    header = b"".join(parts)
    return header + bytes(padded(len(header), alignment) - len(header))


def padded(size: int, alignment: int) -> int:
    """What so many bytes take in a file whose tensors begin at multiples of the alignment."""
    return -(-size // alignment) * alignment
