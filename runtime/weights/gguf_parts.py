"""A GGUF model in several files, as llama.cpp's gguf-split writes one: NAME-00001-of-00003.gguf and so on.

The first file has the model's metadata. Each file says which one it is (`split.no`, from 0), how many files there are
(`split.count`), and how many tensors they have together (`split.tensors.count`).

Source: https://github.com/ggml-org/llama.cpp/tree/master/tools/gguf-split
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.gguf_header import GgufHeader, MetadataValue, read_gguf_header
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE | re.DOTALL)

_SEES = "mmproj"
"""In names of files with the part of a model that sees pictures."""


def read_gguf_model(path: Path) -> GgufHeader:
    """The metadata and the tensors, in order, of a GGUF model; `path` may be one of several files of the model.

    Raises:
        WeightsError: a file is missing, corrupt, or not the one that its name says, or they disagree.
    """
    header = read_gguf_header(path)
    count = _num_parts(header.metadata)
    return header if count == 1 else _read_parts(path, count, header)


def gguf_metadata(path: str | Path) -> Mapping[str, MetadataValue]:
    """Metadata of a GGUF model: scalars, strings, and arrays of them as lists.

    Raises:
        WeightsError: as `read_gguf_model`.
    """
    return read_gguf_model(Path(path)).metadata


def _num_parts(metadata: Mapping[str, MetadataValue]) -> int:
    """The number of files of the model that a file belongs to."""
    count = metadata.get(file_keys.SPLIT_COUNT, 1)
    return count if type(count) is int and count > 1 else 1


def _read_parts(path: Path, count: int, own: GgufHeader) -> GgufHeader:
    """The headers of all files of a model; `path`, whose header is `own`, is one of them."""
    tensors: dict[str, StoredTensor] = {}
    first: GgufHeader | None = None
    for number, part in enumerate(_paths(path, count)):
        if not part.is_file():
            raise WeightsError(f"{path}: {part.name} is missing, one of its model's {count} files; download it")
        header = own if part == path else read_gguf_header(part)
        said = (header.metadata.get(file_keys.SPLIT_NUMBER), _num_parts(header.metadata))
        if said != (number, count):
            raise WeightsError(
                f"{part}: {file_keys.SPLIT_NUMBER} and {file_keys.SPLIT_COUNT} are {said[0]} and {said[1]}, but by its "
                f"name {number} and {count}; give it the name that it was downloaded by"
            )
        if twice := tensors.keys() & header.tensors.keys():
            raise WeightsError(f"{part}: the tensor {quoted(min(twice))} is in another file of the model, too")
        tensors |= header.tensors
        first = first or header
    assert first is not None, "a model of several files has a first one"
    total = first.metadata.get(file_keys.SPLIT_TENSORS, len(tensors))
    if total != len(tensors):
        raise WeightsError(
            f"{path}: its model's {count} files hold {len(tensors)} tensors; {file_keys.SPLIT_TENSORS} is {total}"
        )
    return replace(first, tensors=tensors)


def model_name(path: Path) -> str:
    """The name of a model, from the name of one of its files."""
    match = _NAME.fullmatch(path.name)
    return match["stem"] if match else path.stem


def only_model(files: Iterable[Path]) -> Path | None:
    """The first or only file of a model, if these files are all those of one model, with parts beside it that see."""
    every = sorted(files)
    ordered = [file for file in every if _SEES not in file.name.lower()] or every
    if len(ordered) == 1:
        return ordered[0]
    if not ordered or not (match := _NAME.fullmatch(ordered[0].name)):
        return None
    return ordered[0] if ordered == sorted(_paths(ordered[0], int(match["count"]))) else None


def _paths(path: Path, count: int) -> list[Path]:
    match = _NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise WeightsError(
            f"{path}: one of the {count} files of a model; they are found by their names, which must end in "
            f"-00001-of-{count:05}.gguf and so on: rename them, or join them with llama-gguf-split --merge"
        )
    return [
        path.with_name(f"{match['stem']}-{number:05}-of-{match['count']}{match['suffix']}")
        for number in range(1, count + 1)
    ]
