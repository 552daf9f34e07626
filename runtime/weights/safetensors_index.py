"""Reads a sharded safetensors model: an index file says which shard has each tensor, or the shards' names their number.

Invariant: a shard is in the folder of its index; a name that leads elsewhere is refused.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.json_file import read_json
from mlxr.runtime.weights.safetensors_header import MAX_HEADER_BYTES, read_safetensors_header
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted

_MOST_SHARDS = 10_000


def read_safetensors_index(path: Path) -> dict[str, StoredTensor]:
    """Tensors of all shards that the index at `path` names.

    Raises:
        WeightsError: the index is malformed, a shard is missing or corrupt, or the two disagree about a tensor.
    """
    weight_map = _read_weight_map(path)
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        file = path.parent / shard
        try:
            exists = file.is_file()
        except (OSError, ValueError) as error:  # a name is too long, or a folder may not be searched
            reason = getattr(error, "strerror", None) or error
            raise WeightsError(f"{path}: the shard {quoted(shard)} cannot be read: {reason}") from error
        if not exists:
            listed = sum(value == shard for value in weight_map.values())
            raise WeightsError(
                f"{path}: the shard {quoted(shard)} is missing, which holds {listed} tensors; download it"
            )
        for name, info in read_safetensors_header(file).items():
            if weight_map.get(name) != shard:
                where = f"to be in {quoted(weight_map[name])}" if name in weight_map else "nowhere"
                raise WeightsError(f"{file}: holds tensor {quoted(name)}, which {path.name} says is {where}")
            tensors[name] = info
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise WeightsError(f"{path}: tensor {quoted(absent[0])} is not in its shard {quoted(weight_map[absent[0]])}")
    return tensors


_NUMBERED = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors", re.DOTALL)


def numbered_shards(path: Path) -> list[Path]:
    """The paths of all shards of a model of which `path` is one, `NAME-00001-of-00003.safetensors`; else it alone."""
    match = _NUMBERED.fullmatch(path.name)
    stem, digits, count = match.groups() if match else ("", "", "1")
    if not 1 < int(count) <= _MOST_SHARDS or not 1 <= int(digits) <= int(count):
        return [path]
    numbers = (str(number).zfill(len(digits)) for number in range(1, int(count) + 1))
    return [path.with_name(f"{stem}-{number}-of-{count}.safetensors") for number in numbers]


def numbered_model(files: Iterable[Path]) -> Path | None:
    """One of the files, if all are shards of one model, which needs no index then; else None."""
    models = {tuple(numbered_shards(file)): file for file in files}
    return next(iter(models.values())) if len(models) == 1 else None


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Tensors of a file; of all shards of its model, where its name says that it is one of several.

    Raises:
        WeightsError: a file is corrupt, a shard is missing, or two have a tensor of the same name.
    """
    tensors: dict[str, StoredTensor] = {}
    for shard in (shards := numbered_shards(path)):
        if shard != path and not shard.is_file():
            raise WeightsError(f"{path}: {shard.name} is missing, one of its model's {len(shards)} files; download it")
        for name, info in read_safetensors_header(shard).items():
            if name in tensors:
                raise WeightsError(f"{shard}: holds tensor {quoted(name)}, which {tensors[name].file.name} has, too")
            tensors[name] = info
    return tensors


def _read_weight_map(path: Path) -> dict[str, str]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """An object, in which no key has two meanings: else the last shard of a tensor would win, unnoticed."""
        result = dict(pairs)
        if (twice := next((key for key, value in pairs if result[key] != value), None)) is not None:
            raise WeightsError(f"{path}: the name {quoted(twice)} occurs twice, with different values")
        return result

    index = read_json(path, MAX_HEADER_BYTES, WeightsError, object_pairs_hook=once)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise WeightsError(f"{path}: no `weight_map` from tensor names to shard files; is it a safetensors index?")
    for shard in weight_map.values():
        if not shard.endswith(".safetensors") or any(sign in shard for sign in ("/", "\\", ":", "\0")):
            raise WeightsError(
                f"{path}: refuses the shard name {quoted(shard)}: "
                "expected the name of a .safetensors file beside the index"
            )
    return weight_map
