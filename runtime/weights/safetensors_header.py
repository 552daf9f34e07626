"""Read the header of a safetensors file: what tensors it holds, and where.

The checks are those of the safetensors library, and every fault is a WeightsError. The header is read here, and not by
the library, because its numpy interface has no bf16 and hides the offsets that reading by slabs needs.

Source: https://huggingface.co/docs/safetensors (8 bytes of little-endian header size, the header in JSON, the data).
"""

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.element_types import safetensors_type
from mlxr.runtime.weights.weight_file import TensorInfo, is_possible, quoted

MAX_HEADER_BYTES = 100_000_000
"""The library's own limit."""
_MAX_DIMENSIONS = 16


def read_safetensors_header(path: Path) -> dict[str, TensorInfo]:
    """Tensors of one safetensors file by name, in the order of their data.

    Raises:
        WeightsError: the file cannot be read, or breaks a rule of the format.
    """
    try:
        with path.open("rb") as stream:
            file_bytes = stream.seek(0, 2)
            stream.seek(0)
            prefix = stream.read(8)
            header_bytes = int.from_bytes(prefix, "little")
            if len(prefix) < 8:
                raise WeightsError(f"{path}: not a safetensors file: {file_bytes} bytes, its header size alone takes 8")
            if header_bytes > min(file_bytes - 8, MAX_HEADER_BYTES):
                raise WeightsError(
                    f"{path}: truncated or not a safetensors file: the header is said to take {header_bytes} bytes, "
                    f"the file has {file_bytes - 8} after the size and a header at most {MAX_HEADER_BYTES}"
                )
            text = stream.read(header_bytes)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return _parse(path, text, 8 + header_bytes, file_bytes)
    except _HeaderError as error:
        raise WeightsError(f"{path}: corrupt safetensors header: {error}") from error


class _HeaderError(Exception):
    """A rule of the format is broken; the caller adds the path."""


def _parse(path: Path, text: bytes, data_start: int, file_bytes: int) -> dict[str, TensorInfo]:
    header = _parse_json(text)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _HeaderError("__metadata__ is not a map from strings to strings")
    spans = []
    for name, entry in header.items():
        begin, end, info = _parse_entry(path, name, entry, data_start)
        spans.append((begin, end, info))
    spans.sort(key=lambda span: span[:2])
    position = 0
    for begin, end, info in spans:
        if begin != position:
            raise _HeaderError(
                f"tensor {quoted(info.name)} begins at byte {begin} of the data, the one before it ends at {position}: "
                f"tensors {'overlap' if begin < position else 'leave a hole'}"
            )
        position = end
    if position != file_bytes - data_start:
        fault = "truncated" if position > file_bytes - data_start else "longer than its tensors"
        raise _HeaderError(
            f"the tensors take {position} bytes, the file holds {file_bytes - data_start}: it is {fault}"
        )
    return {info.name: info for _, _, info in spans}


def _parse_json(text: bytes) -> dict[str, Any]:
    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
            raise _HeaderError(f"the name {quoted(twice)} occurs twice")
        return result

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise _HeaderError(f"not JSON: {quoted(str(error))}") from error
    if not isinstance(header, dict):
        raise _HeaderError("not a JSON object")
    return header


def _parse_entry(path: Path, name: str, entry: Any, data_start: int) -> tuple[int, int, TensorInfo]:
    where = f"tensor {quoted(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _HeaderError(f"{where}: expected an object with dtype, shape and data_offsets")
    element_type = safetensors_type(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if element_type is None:
        raise _HeaderError(f"{where}: unknown dtype {quoted(str(entry['dtype']))}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        raise _HeaderError(f"{where}: the shape is not a list of at most {_MAX_DIMENSIONS} sizes")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _HeaderError(f"{where}: data_offsets is not a pair [begin, end]")
    if not is_possible(shape):
        raise _HeaderError(f"{where}: the shape {shape} is impossible")
    begin, end = offsets
    expected = prod(shape) * element_type.block_bytes
    if end - begin != expected:
        raise _HeaderError(f"{where}: shape {shape} in {element_type.name} takes {expected} bytes, got {end - begin}")
    return begin, end, TensorInfo(name, tuple(shape), element_type, path, data_start + begin)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)
