"""Reads the header of a GGUF file: its metadata, and which tensors are where.

The reader of the `gguf` package is for trusted files: a hostile count makes it loop or take all memory, and a truncated
file makes it raise anything. So the header is scanned here, once, and nothing is read for which the file is not long
enough. Every fault is a WeightsError.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.element_types import gguf_type
from mlxr.runtime.weights.gguf_cursor import GgufCursor, GgufFault
from mlxr.runtime.weights.headers_read_once import HEADERS_READ
from mlxr.runtime.weights.stored_tensor import StoredTensor, is_possible, quoted

Scalar = bool | int | float | str
MetadataValue = Scalar | list[bool] | list[int] | list[float] | list[str]

_STRING, _ARRAY = 8, 9
_F32 = 0
_ARRAY_HEAD_BYTES = 4 + 4 + 8  # that it is one, the type of its elements, and how many there are
_NUMBERS = "xielu."
"""How keys of arrays begin that hold learned numbers: they count as tensors of that name."""
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""The `struct` codes of the types of values, by their numbers."""
_MAX_HEADER_BYTES = 64 << 20  # the largest vocabularies with their merges take about 16 MiB
_MIN_ENTRY_BYTES = 8 + 4 + 1  # a metadata entry: key length, type, one byte of value
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # a tensor: name length, dimension count, type, offset
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself."""

    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, StoredTensor]
    path: Path
    """The file with the metadata."""
    spans: Mapping[str, tuple[int, int]]
    """Where each entry's type and value begin and end in it."""


def read_gguf_header(path: Path) -> GgufHeader:
    """Scans the header of the GGUF file at `path`.

    Raises:
        WeightsError: the file cannot be read, is truncated or big-endian, or breaks a rule.
    """
    known: dict[tuple[object, ...], GgufHeader] | None = HEADERS_READ.get()
    try:
        if known is not None and (header := known.get(_state(path, path.stat()))) is not None:
            return header
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_size == 0:
                raise GgufFault("it is empty; get the file again")
            header = _scan(GgufCursor(stream, min(status.st_size, _MAX_HEADER_BYTES)), path, status.st_size)
            if known is not None:
                known[_state(path, status)] = header
            return header
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except GgufFault as error:
        raise WeightsError(f"{path}: corrupt GGUF file: {error}") from error


def _state(path: Path, status: os.stat_result) -> tuple[object, ...]:
    """What changes when a file does."""
    return path, status.st_ino, status.st_size, status.st_mtime_ns


def _scan(cursor: GgufCursor, path: Path, file_bytes: int) -> GgufHeader:
    magic = cursor.take(4, "the magic number")
    if magic != file_keys.GGUF_MAGIC:
        raise GgufFault(f"it begins with {magic!r}, expected {file_keys.GGUF_MAGIC!r}")
    (version,) = cursor.unpack("I", "the version")
    if version & 0xFFFF == 0 and version:
        raise GgufFault("it is big-endian; only little-endian files can be read, convert it again on such a machine")
    if version not in (2, 3):
        raise GgufFault(f"it has version {version}; versions 2 and 3 can be read")
    num_tensors, num_entries = cursor.unpack("QQ", "the counts of tensors and metadata")
    cursor.check_count(num_entries, _MIN_ENTRY_BYTES, "metadata entries")
    metadata: dict[str, MetadataValue] = {}
    spans: dict[str, tuple[int, int]] = {}
    arrays: dict[str, StoredTensor] = {}
    for _ in range(num_entries):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise GgufFault(f"the metadata key {quoted(key)} occurs twice")
        begin = cursor.position
        start = begin + _ARRAY_HEAD_BYTES
        metadata[key] = value = _read_value(cursor, key)
        spans[key] = begin, cursor.position
        if key.startswith(_NUMBERS) and isinstance(value, list) and cursor.position - start == 4 * len(value):
            arrays[key] = _stored_tensor(path, key, (len(value),), _F32, start)
    cursor.check_count(num_tensors, _MIN_TENSOR_BYTES, "tensors")
    entries = [_read_tensor(cursor) for _ in range(num_tensors)]
    alignment = _alignment(metadata)
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for name, shape, type_number, offset in entries:
        if name in tensors:
            raise GgufFault(f"the tensor {quoted(name)} occurs twice")
        if offset % alignment:
            raise GgufFault(f"tensor {quoted(name)} begins at {offset}, which is not a multiple of {alignment}")
        tensors[name] = _stored_tensor(path, name, shape, type_number, data_start + offset)
    _check_ranges(tensors, file_bytes)
    return GgufHeader(metadata, arrays | tensors, path, spans)


def _read_value(cursor: GgufCursor, key: str) -> MetadataValue:
    where = f"the metadata of {quoted(key)}"
    (kind,) = cursor.unpack("I", where)
    if kind == _STRING:
        return cursor.text(where, strict=False)
    if kind == _ARRAY:
        item_kind, count = cursor.unpack("IQ", where)
        if item_kind == _STRING:
            cursor.check_count(count, 8, f"strings in {where}")
            return cursor.texts(count, where)
        item_code = _SCALARS.get(item_kind)
        if item_code is None:
            raise GgufFault(f"{where} is an array of type {item_kind}, which is unknown or itself an array")
        cursor.check_count(count, struct.calcsize(item_code), f"elements in {where}")
        return list(cursor.unpack(f"{count}{item_code}", where))
    code = _SCALARS.get(kind)
    if code is None:
        raise GgufFault(f"{where} has the unknown type {kind}")
    value: Scalar = cursor.unpack(code, where)[0]
    return value


def _read_tensor(cursor: GgufCursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.text("a tensor's name")
    where = f"the description of tensor {quoted(name)}"
    (num_dimensions,) = cursor.unpack("I", where)
    if num_dimensions > _MAX_DIMENSIONS:
        raise GgufFault(f"tensor {quoted(name)} has {num_dimensions} dimensions, at most {_MAX_DIMENSIONS} are allowed")
    dimensions = cursor.unpack(f"{num_dimensions}Q", where)
    type_number, offset = cursor.unpack("IQ", where)
    return name, tuple(reversed(dimensions)), type_number, offset  # GGUF has the innermost dimension first


def _alignment(metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get(file_keys.ALIGNMENT, 32)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise GgufFault(f"{file_keys.ALIGNMENT} is {quoted(str(alignment))}, expected a power of two")
    return alignment


def _stored_tensor(path: Path, name: str, shape: tuple[int, ...], type_number: int, offset: int) -> StoredTensor:
    element_type = gguf_type(type_number)
    if element_type is None:
        raise WeightsError(
            f"{path}: tensor {quoted(name)} is of type {type_number}, which is newer than MLXR knows, unless the file "
            "is corrupt: take a file of another format, such as Q4_K_M"
        )
    innermost = shape[-1] if shape else 1
    if innermost % element_type.block_elements:
        raise GgufFault(
            f"tensor {quoted(name)} has rows of {innermost} elements, "
            f"not a multiple of {element_type.name}'s block of {element_type.block_elements}"
        )
    if not is_possible(shape):
        raise GgufFault(f"tensor {quoted(name)} has the impossible shape {list(shape)}")
    return StoredTensor(name, shape, element_type, path, offset)


def _check_ranges(tensors: Mapping[str, StoredTensor], file_bytes: int) -> None:
    position, before = 0, ""
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.size_bytes)):
        end = info.offset + info.size_bytes
        if info.offset < position:
            raise GgufFault(f"the tensors {quoted(before)} and {quoted(info.name)} overlap")
        if end > file_bytes:
            raise GgufFault(f"tensor {quoted(info.name)} ends at byte {end}, the file at {file_bytes}: it is truncated")
        position, before = end, info.name
