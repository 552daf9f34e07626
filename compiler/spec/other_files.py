"""Explains what a path is if it is not the spec, artifact or model that was expected, and what to do with it."""

from pathlib import Path

from mlxr.compiler.formats.file_keys import CONFIG_FILE, GGUF_MAGIC, PICKLE_ENDINGS
from mlxr.compiler.formats.foreign_file import foreign_file

_MAX_NAMED = 8


def other_than_a_spec(path: Path) -> str | None:
    """The explanation of a path that is not a spec; None if it may be one.

    Raises:
        OSError: it cannot be read.
    """
    if path.is_dir():
        if (path / "manifest.json").is_file():
            return f"{path} is an artifact, which is compiled already; its spec is {path / 'spec.yaml'}"
        if (path / CONFIG_FILE).is_file():
            return f"{path} is the folder of a model, not a spec; {_import(path)}"
        return f"{path} is a folder; expected a spec file"
    if path.suffix.lower() not in PICKLE_ENDINGS and (kind := foreign_file(path)) is not None:
        return f"{path} is {kind}"
    if is_gguf(path):
        return f"{path} is a GGUF file, not a spec; {_import(path)}"
    folder = path.absolute().parent if path.parent == Path() else path.parent
    if path.suffix.lower() == ".safetensors" or path.suffix.lower() in PICKLE_ENDINGS:
        return (
            f"{path} holds weights and does not say what model they are of; name the folder that has the model's "
            f"config.json: {folder}"
        )
    if path.name == CONFIG_FILE:
        return f"{path} describes the model in its folder and is not a spec; name the folder: {folder}"
    return None


def other_than_an_artifact(path: Path) -> str:
    """The explanation of a path that is neither an artifact nor a model's folder."""
    if not path.exists():
        return f"{path}: no such folder; mlxr-compile SPEC -o {path} makes an artifact there"
    if not path.is_dir():
        return f"{path} is not an artifact, which is a folder"
    return f"{path} is not an artifact (it has no manifest.json), nor a model: {_no_model(path)}"


def other_than_a_model(path: Path) -> str:
    """The explanation of a path that is not a model's own file or folder.

    Raises:
        OSError: it cannot be read.
    """
    expected = "expected a .gguf file, or a folder with a config.json or one .gguf file"
    if not path.exists():
        return f"{path}: no such file or folder; {expected}"
    if path.is_dir():
        return f"{path} is not a model: {_no_model(path)}"
    return other_than_a_spec(path) or f"{path} is not a model; {expected}"


def _no_model(folder: Path) -> str:
    gguf = sorted(file.name for file in folder.glob("*.gguf"))
    if len(gguf) > 1:
        names = ", ".join(gguf[:_MAX_NAMED]) + (", ..." if len(gguf) > _MAX_NAMED else "")
        return f"it holds {len(gguf)} .gguf files; name one of them: {names}"
    if any(folder.glob("*.safetensors")):
        return "it holds weights, but no config.json, which says what model they are of; get the model's whole folder"
    return "it holds no config.json and no .gguf file"


def is_gguf(path: Path) -> bool:
    """Whether a file is GGUF, by its name or its first bytes.

    Raises:
        OSError: it cannot be read.
    """
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as stream:
        return stream.read(len(GGUF_MAGIC)) == GGUF_MAGIC


def _import(path: Path) -> str:
    return f"mlxr run {path} runs it as it is, mlxr import {path} -o spec.yaml writes its spec to compile"
