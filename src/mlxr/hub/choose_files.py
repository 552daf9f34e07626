"""Which files of a repository a model needs: one GGUF model, or safetensors with what describes them."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.text import size
from mlxr.hub import HubError
from mlxr.hub.reference import HubReference

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PART = re.compile(r"(?P<stem>.*)-\d{5}-of-\d{5}\.gguf", re.IGNORECASE)
_NO_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""In names of parts that see pictures, of what quantisers measured, and of what guesses tokens: llama.cpp's list."""
_CODE = (".py", ".pyc", ".so", ".sh", ".js", ".ipynb")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, as the hub describes it.

    Attributes:
        path: its path in the repository.
        size_bytes: its size.
        digest: the SHA-256 of its content, or for small files the SHA-1 that git gives it: hexadecimal digits.
    """

    path: str
    size_bytes: int
    digest: str


GgufModels = Mapping[str, tuple[HubFile, ...]]
"""GGUF models by the path of each, without the numbers of parts; each with its files in order."""


@dataclass(frozen=True)
class FileChoice:
    """Files to fetch.

    Attributes:
        files: all of them, or all but those that the index names.
        entry: the path in the repository that is MODEL: that of a GGUF file; empty: the whole folder.
        index: the file that says which other ones hold the weights; None: `files` has them all.
    """

    files: tuple[HubFile, ...]
    entry: str = ""
    index: HubFile | None = None


def choose_files(
    reference: HubReference, files: Collection[HubFile], best: Callable[[GgufModels], tuple[HubFile, ...]]
) -> FileChoice:
    """The files of a model.

    Args:
        reference: the model.
        files: those of its repository.
        best: chooses one of several GGUF models of which the reference names none.

    Raises:
        HubError: there is none that MLXR reads, or the reference names several, code or a pickle.
        MlxrError: as `best`.
    """
    by_path, models = _sorted(files)
    if reference.file is not None:
        return _named(reference, by_path, models)
    if file_keys.CONFIG_FILE in by_path and (choice := _safetensors(reference, by_path)) is not None:
        return choice
    if len(models) == 1:
        return _gguf(*models.values())
    if models:
        return _gguf(best(models))
    raise HubError(f"{reference.repo}: {_nothing(by_path)}")


def all_choices(reference: HubReference, files: Collection[HubFile]) -> tuple[FileChoice, ...]:
    """All models of a repository, or the one that the reference names: a folder first, then GGUF models by their paths.

    Args:
        reference: the model.
        files: those of its repository.

    Raises:
        HubError: as `choose_files`.
    """
    by_path, models = _sorted(files)
    if reference.file is not None:
        return (_named(reference, by_path, models),)
    folder = _safetensors(reference, by_path) if file_keys.CONFIG_FILE in by_path else None
    found = (*(() if folder is None else (folder,)), *map(_gguf, models.values()))
    if not found:
        raise HubError(f"{reference.repo}: {_nothing(by_path)}")
    return found


def weights_of_index(reference: HubReference, index: Any, files: Collection[HubFile]) -> tuple[HubFile, ...]:
    """The weight files that a safetensors index names.

    Args:
        reference: the model.
        index: the content of its index.
        files: the files of its repository.

    Raises:
        HubError: it is not an index, or names files that the repository lacks.
    """
    table = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise HubError(f"{reference.repo}: its {INDEX} has no weight_map, so nothing says which files hold the weights")
    names, by_path = sorted(set(table.values())), {file.path: file for file in files}
    for name in names:
        if not name.endswith(".safetensors") or "/" in name or name not in by_path:
            raise HubError(
                f"{reference.repo}: its {INDEX} names {name!r}, which is not a weight file of this repository"
            )
    return tuple(by_path[name] for name in names)


def _sorted(files: Collection[HubFile]) -> tuple[dict[str, HubFile], GgufModels]:
    """The files by their paths, and the GGUF models among them."""
    by_path = {file.path: file for file in sorted(files, key=lambda file: file.path) if _is_plain(file.path)}
    return by_path, gguf_models(list(by_path.values()))


def _is_plain(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path and "\0" not in path


def _safetensors(reference: HubReference, by_path: Mapping[str, HubFile]) -> FileChoice | None:
    needless = file_keys.OLDER_VOCABULARIES if "tokenizer.json" in by_path else ()
    describing = tuple(by_path[name] for name in file_keys.DESCRIBING_FILES if name in by_path and name not in needless)
    if _SINGLE in by_path:
        return FileChoice((*describing, by_path[_SINGLE]))
    if INDEX in by_path:
        return FileChoice((*describing, by_path[INDEX]), index=by_path[INDEX])
    others = [path for path in by_path if path.endswith(".safetensors") and "/" not in path]
    if len(others) > 1:
        raise HubError(
            f"{reference.repo} has {len(others)} safetensors files and no {INDEX} that says how they belong together: "
            f"{', '.join(others[:8])}"
        )
    return FileChoice((*describing, by_path[others[0]])) if others else None


def gguf_models(files: Sequence[HubFile]) -> GgufModels:
    """The GGUF models among files, which are in the order of their paths; parts that see or guess are left out."""
    models: dict[str, tuple[HubFile, ...]] = {}
    for file in files:
        name = PurePosixPath(file.path).name.lower()
        if name.endswith(".gguf") and not any(part in name for part in _NO_MODELS):
            part = _PART.fullmatch(file.path)
            key = f"{part['stem']}.gguf" if part else file.path
            models[key] = (*models.get(key, ()), file)
    return models


def _named(reference: HubReference, by_path: Mapping[str, HubFile], models: GgufModels) -> FileChoice:
    wanted = reference.file or ""
    is_folder = wanted.lower() == "safetensors" and file_keys.CONFIG_FILE in by_path
    if is_folder and (choice := _safetensors(reference, by_path)) is not None:
        return choice
    if wanted.lower().endswith(file_keys.PICKLE_ENDINGS):
        raise HubError(
            f"{reference}: refused: a {PurePosixPath(wanted).suffix} file is a pickle, which can run code when read"
        )
    if wanted.lower().endswith(_CODE):
        raise HubError(f"{reference}: refused: this is code; MLXR fetches none, and runs none that comes with a model")
    if wanted.endswith(".safetensors") and wanted in by_path:
        raise HubError(f"{reference}: a safetensors file goes with its whole folder; name that: {reference.repo}")
    for matches in (
        [key for key, files in models.items() if wanted in (key, *(file.path for file in files))],
        [key for key in models if PurePosixPath(key).stem.lower().endswith(wanted.lower())],
        [key for key in models if wanted.lower() in PurePosixPath(key).name.lower()],
    ):
        if len(matches) == 1:
            return _gguf(models[matches[0]])
        if matches:
            several = {key: models[key] for key in matches}
            raise HubError(f"{reference}: {len(matches)} GGUF models match: name one of them further{_listed(several)}")
    if not models:
        raise HubError(f"{reference}: {reference.repo} has no GGUF files to choose from; name it without {wanted!r}")
    raise HubError(f"{reference}: no GGUF file of {reference.repo} has {wanted!r} in its name{_listed(models)}")


def _gguf(files: tuple[HubFile, ...]) -> FileChoice:
    return FileChoice(files, files[0].path)


def _listed(models: GgufModels) -> str:
    rows = [(key, sum(file.size_bytes for file in files)) for key, files in models.items()]
    return "".join(f"\n  {size(size_bytes):>10}  {key}" for key, size_bytes in sorted(rows, key=lambda row: row[1]))


def _nothing(by_path: Mapping[str, HubFile]) -> str:
    pickles = [path for path in by_path if path.lower().endswith(file_keys.PICKLE_ENDINGS)]
    if pickles:
        return (
            f"its weights are pickles ({', '.join(pickles[:3])}), which can run code when read; MLXR fetches only "
            "safetensors and GGUF files: look for a repository that has the model as such"
        )
    if any(path.endswith(".safetensors") for path in by_path):
        return f"it has safetensors files, but no {file_keys.CONFIG_FILE} that says what model they are of"
    return "it has no safetensors and no GGUF files, so there is no model here that MLXR reads"
