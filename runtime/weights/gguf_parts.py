"""A GGUF model in several files, as llama.cpp's gguf-split writes one: NAME-00001-of-00003.gguf and so on.

The first file holds the model's metadata. Each says which one it is (`split.no`, from 0), how many there are
(`split.count`), and how many tensors all hold together (`split.tensors.count`).

Source: https://github.com/ggml-org/llama.cpp/tree/master/tools/gguf-split
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.weight_file import TensorInfo, quoted

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE | re.DOTALL)


class Header(Protocol):
    """What is asked of a file's header."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Its metadata."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Its tensors, by name."""


def num_parts(metadata: Mapping[str, Any]) -> int:
    """The files of the model that a file belongs to."""
    count = metadata.get(file_keys.SPLIT_COUNT, 1)
    return count if type(count) is int and count > 1 else 1


def read_parts(path: Path, own: Header, read: Callable[[Path], Header]) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """The metadata of the first file, and the tensors of all, in order.

    Args:
        path: any one of the files.
        own: its header.
        read: reads the header of another.

    Raises:
        WeightsError: a file is missing, or is not the one that its name says, or they disagree.
    """
    count = num_parts(own.metadata)
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, Any] = {}
    for number, part in enumerate(_paths(path, count)):
        if not part.is_file():
            raise WeightsError(f"{path}: {part.name} is missing, one of its model's {count} files; download it")
        header = own if part == path else read(part)
        told = (header.metadata.get(file_keys.SPLIT_NUMBER), num_parts(header.metadata))
        if told != (number, count):
            raise WeightsError(
                f"{part}: {file_keys.SPLIT_NUMBER} and {file_keys.SPLIT_COUNT} are {told[0]} and {told[1]}, but by its "
                f"name {number} and {count}; "
                "give it the name that it was downloaded by"
            )
        if twice := tensors.keys() & header.tensors.keys():
            raise WeightsError(f"{part}: the tensor {quoted(min(twice))} is in another file of the model, too")
        tensors |= header.tensors
        metadata = metadata or dict(header.metadata)
    total = metadata.get(file_keys.SPLIT_TENSORS, len(tensors))
    if total != len(tensors):
        raise WeightsError(
            f"{path}: its model's {count} files hold {len(tensors)} tensors; {file_keys.SPLIT_TENSORS} is {total}"
        )
    return metadata, tensors


def model_name(path: Path) -> str:
    """A model's name, from that of its file or one of its files."""
    match = _NAME.fullmatch(path.name)
    return match["stem"] if match else path.stem


def only_model(files: Iterable[Path]) -> Path | None:
    """The first file of a model, or its only one, if these are all the files of one and nothing else."""
    found = sorted(files)
    if len(found) == 1:
        return found[0]
    if not found or not (match := _NAME.fullmatch(found[0].name)):
        return None
    return found[0] if found == sorted(_paths(found[0], int(match["count"]))) else None


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
