"""Read the header of a GGUF file: its metadata, what tensors it holds, and where.

The `gguf` package gives the types' sizes and dequantises. Its reader is for trusted files: a hostile count makes it
loop or take all memory, a truncated one raises anything. So the header is scanned here, once, and nothing is taken that
the file is not long enough to hold. Every fault is a WeightsError.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFValueType

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.element_types import gguf_type
from mlxr.runtime.weights.gguf_cursor import GgufCursor, GgufFault
from mlxr.runtime.weights.gguf_parts import num_parts, read_parts
from mlxr.runtime.weights.weight_file import TensorInfo, is_possible, quoted

MAGIC = b"GGUF"
Scalar = bool | int | float | str
MetadataValue = Scalar | list[bool] | list[int] | list[float] | list[str]

_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_MAX_HEADER_BYTES = 64 << 20  # the largest vocabularies with their merges take about 16 MiB
_MIN_ENTRY_BYTES = 8 + 4 + 1  # a metadata entry: key length, type, one byte of value
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # a tensor: name length, dimension count, type, offset
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself."""

    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo]


def read_gguf_header(path: Path) -> GgufHeader:
    """Scan the header of the GGUF file at `path`; of one of several files of a model, the headers of all.

    Raises:
        WeightsError: the file cannot be read, is truncated or big-endian, or breaks a rule; or so does another of its
            model's files.
    """
    header = _read_file(path)
    return GgufHeader(*read_parts(path, header, _read_file)) if num_parts(header.metadata) > 1 else header


def _read_file(path: Path) -> GgufHeader:
    try:
        with path.open("rb") as stream:
            file_bytes = stream.seek(0, 2)
            stream.seek(0)
            if file_bytes == 0:
                raise GgufFault("it is empty; get the file again")
            cursor = GgufCursor(stream, min(file_bytes, _MAX_HEADER_BYTES))
            return _scan(cursor, path, file_bytes)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except GgufFault as error:
        raise WeightsError(f"{path}: corrupt GGUF file: {error}") from error


def gguf_metadata(path: str | Path) -> Mapping[str, MetadataValue]:
    """Metadata of a GGUF file: scalars, strings, and arrays of them as lists.

    Raises:
        WeightsError: as `read_gguf_header`.
    """
    return read_gguf_header(Path(path)).metadata


def _scan(cursor: GgufCursor, path: Path, file_bytes: int) -> GgufHeader:
    magic = cursor.take(4, "the magic number")
    if magic != MAGIC:
        raise GgufFault(f"it begins with {magic!r}, expected {MAGIC!r}")
    (version,) = cursor.unpack("I", "the version")
    if version & 0xFFFF == 0 and version:
        raise GgufFault("it is big-endian; only little-endian files can be read, convert it again on such a machine")
    if version not in (2, 3):
        raise GgufFault(f"it has version {version}; versions 2 and 3 can be read")
    num_tensors, num_entries = cursor.unpack("QQ", "the counts of tensors and metadata")
    cursor.check_count(num_entries, _MIN_ENTRY_BYTES, "metadata entries")
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_entries):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise GgufFault(f"the metadata key {quoted(key)} occurs twice")
        metadata[key] = _read_value(cursor, key)
    cursor.check_count(num_tensors, _MIN_TENSOR_BYTES, "tensors")
    entries = [_read_tensor(cursor) for _ in range(num_tensors)]
    alignment = _alignment(metadata)
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, type_number, offset in entries:
        if name in tensors:
            raise GgufFault(f"the tensor {quoted(name)} occurs twice")
        if offset % alignment:
            raise GgufFault(f"tensor {quoted(name)} begins at {offset}, which is not a multiple of {alignment}")
        tensors[name] = _tensor_info(path, name, shape, type_number, data_start + offset)
    _check_ranges(tensors, file_bytes)
    return GgufHeader(metadata, tensors)


def _read_value(cursor: GgufCursor, key: str) -> MetadataValue:
    where = f"the metadata of {quoted(key)}"
    (kind,) = cursor.unpack("I", where)
    if kind == GGUFValueType.STRING:
        return cursor.text(where, strict=False)
    if kind == GGUFValueType.ARRAY:
        item_kind, count = cursor.unpack("IQ", where)
        if item_kind == GGUFValueType.STRING:
            cursor.check_count(count, 8, f"strings in {where}")
            return [cursor.text(where, strict=False) for _ in range(count)]
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


def _tensor_info(path: Path, name: str, shape: tuple[int, ...], type_number: int, offset: int) -> TensorInfo:
    element_type = gguf_type(type_number)
    if element_type is None:
        raise GgufFault(f"tensor {quoted(name)} has the unknown type {type_number}; a newer `gguf` package may know it")
    innermost = shape[-1] if shape else 1
    if innermost % element_type.block_elements:
        raise GgufFault(
            f"tensor {quoted(name)} has rows of {innermost} elements, "
            f"not a multiple of {element_type.name}'s block of {element_type.block_elements}"
        )
    if not is_possible(shape):
        raise GgufFault(f"tensor {quoted(name)} has the impossible shape {list(shape)}")
    return TensorInfo(name, shape, element_type, path, offset)


def _check_ranges(tensors: Mapping[str, TensorInfo], file_bytes: int) -> None:
    position, before = 0, ""
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.size_bytes)):
        end = info.offset + info.size_bytes
        if info.offset < position:
            raise GgufFault(f"the tensors {quoted(before)} and {quoted(info.name)} overlap")
        if end > file_bytes:
            raise GgufFault(f"tensor {quoted(info.name)} ends at byte {end}, the file at {file_bytes}: it is truncated")
        position, before = end, info.name
