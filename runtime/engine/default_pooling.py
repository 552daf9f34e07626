"""How a model's own files say that the rows of a prompt are pooled."""

from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.dense_modules import Dense, read_dense, read_dense_of_gguf
from mlxr.runtime.engine.pool import POOLINGS, Pooling
from mlxr.runtime.json_file import read_json, read_json_object
from mlxr.runtime.weights.weight_file import WeightFile

_GGUF: dict[object, Pooling | str] = {0: "mean", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
"""llama.cpp's numbers; 0 says nothing."""
_FLAGS: dict[str, Pooling | str] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_NAMES: dict[object, Pooling] = {"mean": "mean", "lasttoken": "last", "cls": "cls"}
_KNOWN_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")


def default_pooling(file: WeightFile) -> Pooling:
    """The pooling that GGUF's `pooling_type` or sentence-transformers' files beside the weights name; else `mean`.

    Raises:
        RequestError: they ask for something that is not supported, or cannot be read.
    """
    if file.format == "gguf":
        key = f"{file.metadata.get(file_keys.ARCHITECTURE)}.pooling_type"
        number = file.metadata.get(key, 0)
        return _supported(_GGUF.get(number, str(number)), f"{file.path}: {key}")
    folder = file.path.parent
    modules = folder / file_keys.ST_MODULES
    if not modules.is_file():
        config = folder / file_keys.ST_POOLING
        return _of_config(config) if config.is_file() else "mean"
    pooling: Pooling = "mean"
    for kind, path in _modules(folder):
        if kind not in _KNOWN_MODULES:
            raise RequestError(
                f"{modules}: the model's embeddings pass through a module {kind!r}, which is not supported: name a "
                "pooling (mean, last or cls) to get them without it"
            )
        if kind == "Pooling":
            pooling = _of_config(path / "config.json")
    return pooling


def dense_modules(file: WeightFile) -> tuple[Dense, ...]:
    """The products behind the pooling that sentence-transformers' files beside the weights name, or GGUF has, in order.

    Raises:
        MlxrError: one of them cannot be read.
    """
    folder = file.path.parent
    if file.format == "gguf":
        return read_dense_of_gguf(file)
    if not (folder / file_keys.ST_MODULES).is_file():
        return ()
    return tuple(read_dense(path) for kind, path in _modules(folder) if kind == "Dense")


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """The kind and the folder of each module."""
    modules = folder / file_keys.ST_MODULES
    entries = _dicts(read_json(modules, file_keys.CONFIG_BYTES, RequestError), modules)
    kinds = [str(entry.get("type", "")).rpartition(".")[2] for entry in entries]
    paths = [folder / Path(str(entry.get("path", ""))).name for entry in entries]
    return list(zip(kinds, paths, strict=True))


def _of_config(path: Path) -> Pooling:
    config = read_json_object(path, file_keys.CONFIG_BYTES, RequestError)
    named = config.get("pooling_mode")
    modes = [named] if named is not None else [mode for flag, mode in _FLAGS.items() if config.get(flag)]
    if config.get("include_prompt") is False:
        modes.append("include_prompt: false")
    mode = modes[0] if len(modes) == 1 else " and ".join(map(str, modes)) or "none"
    return _supported(_NAMES.get(mode, mode), str(path))


def _supported(mode: object, where: str) -> Pooling:
    for pooling in POOLINGS:
        if mode == pooling:
            return pooling
    raise RequestError(f"{where} asks for the pooling {mode}, which is not supported: name {' or '.join(POOLINGS)}")


def _dicts(content: Any, path: Path) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise RequestError(f"{path}: holds no list of modules, so it is not a sentence-transformers model's file")
    return content
