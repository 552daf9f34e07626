"""Reads the header of a safetensors file: which tensors are where.

The safetensors library checks the file and returns names, shapes and types. It hides where each tensor begins, which is
read here from the JSON that it has accepted. It also accepts some faults that are checked here: a name that occurs
twice, a shape that no array can have, a type of unknown size. Invariants: every fault is a WeightsError; on return the
library has unmapped the file, and no tensor data has been read.

Source: https://huggingface.co/docs/safetensors (8 bytes of little-endian header size, the header in JSON, the data).
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import safe_open

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.element_types import ElementType, safetensors_type
from mlxr.runtime.weights.stored_tensor import StoredTensor, is_possible, quoted

MAX_HEADER_BYTES = 100_000_000
"""The library's own limit."""
_MAX_DIMENSIONS = 16
_HINTS = {  # as the library says it
    "header too|invalid header length": "the file is truncated or not a safetensors file",
    "not fully covered": "the file is truncated, or longer than its tensors",
}


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """Tensors of one safetensors file by name, in the order of their data.

    Raises:
        WeightsError: the file cannot be read, or breaks a rule of the format.
    """
    try:
        with path.open("rb") as stream:  # before the library does: it reports every failure to open as "no such file"
            listed = _list_tensors(path)
            begins = _find_tensors(stream)
        tensors = [
            StoredTensor(name, tuple(shape), _element_type(name, shape, dtype), path, begins[name])
            for name, (shape, dtype) in listed.items()
        ]
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _HeaderError as error:
        raise WeightsError(f"{path}: corrupt safetensors header: {error}") from error
    tensors.sort(key=lambda info: (info.offset, info.size_bytes))
    return {info.name: info for info in tensors}


class _HeaderError(Exception):
    """A rule of the format is broken; the caller adds the path."""


def _list_tensors(path: Path) -> dict[str, tuple[list[int], str]]:
    """Shape and dtype of every tensor, after the library has checked the header and the size of the file."""
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            return {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}
    except OSError:
        raise
    except Exception as error:  # SafetensorError, and whatever else its Rust code raises
        reason = str(error).removeprefix("Error while deserializing header: ")
        hints = [f": {hint}" for words, hint in _HINTS.items() if re.search(words, reason, re.IGNORECASE)]
        raise _HeaderError("".join([quoted(reason, 250), *hints])) from error


def _find_tensors(stream: BinaryIO) -> dict[str, int]:
    """Where in the file each tensor begins. The library has checked these offsets, but does not return them."""
    header_bytes = int.from_bytes(stream.read(8), "little")
    header = json.loads(stream.read(header_bytes), object_pairs_hook=_refuse_duplicates)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if not isinstance(entry, dict):  # the library also accepts a list of the values without keys
            raise _HeaderError(f"tensor {quoted(name)}: expected an object with dtype, shape and data_offsets")
    return {name: 8 + header_bytes + entry["data_offsets"][0] for name, entry in header.items()}


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):  # the library uses the last one
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise _HeaderError(f"the name {quoted(twice)} occurs twice")
    return result


def _element_type(name: str, shape: Sequence[int], dtype: str) -> ElementType:
    element_type = safetensors_type(dtype)
    if element_type is None:
        raise _HeaderError(f"tensor {quoted(name)}: unknown dtype {quoted(dtype)}")
    if len(shape) > _MAX_DIMENSIONS or not is_possible(shape):
        raise _HeaderError(f"tensor {quoted(name)}: the shape {quoted(str(shape))} is impossible")
    return element_type
