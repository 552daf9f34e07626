"""The models among which to choose: those of a repository, of a folder, or one alone; only their headers are here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.hub import HubError
from mlxr.hub.best_file import preference
from mlxr.hub.choose_files import FileChoice, GgufModels, HubFile, all_choices, gguf_models, weights_of_index
from mlxr.hub.download import HubProgress, download
from mlxr.hub.fetch import INDEX_BYTES, described_folder, list_files
from mlxr.hub.file_start import hub_starts, write_safetensors_starts, write_starts
from mlxr.hub.reference import HubReference, hub_reference, is_in_a_folder
from mlxr.hub.worded_errors import worded
from mlxr.registry.registry import Registry
from mlxr.runtime.json_file import read_json
from mlxr.runtime.weights.gguf_parts import model_name

_FOLDER_FIRST = -1
"""The place of a folder of safetensors among GGUF models: `mlxr pull` takes it before them."""


@dataclass(frozen=True)
class Candidate:
    """A model.

    Attributes:
        name: what other commands take for it.
        size_bytes: of its files; None: it is a spec, an artifact, or a name.
        place: among those of its repository or folder, the one that loses little in the fewest bytes first.
        headers: gives what `find_model` takes: the model itself, or a copy of its headers. It may raise MlxrErrors.
    """

    name: str
    size_bytes: int | None
    place: int
    headers: Callable[[], str | Path]


def candidates(model: str, folder: Path, progress: HubProgress) -> list[Candidate]:
    """The models that a name, a path, or a repository on the hub stands for.

    Args:
        model: it.
        folder: for copies of headers.
        progress: called while small files are fetched: config.json, the index of several weight files, the tokenizer.

    Raises:
        HubError: there is no such repository, it may not be read, or it has no model.
    """
    path = Path(model)
    reference = hub_reference(model)
    is_known = model in bundled_specs() or path.exists() or is_in_a_folder(model)
    if reference is not None and not is_known and Registry().get(model) is None:
        return _of_hub(reference, folder, progress)
    if (path / file_keys.CONFIG_FILE).is_file():
        size_bytes = _weights_bytes({file.name: file.stat().st_size for file in path.glob("*.safetensors")})
        return [Candidate(model, size_bytes, _FOLDER_FIRST, lambda: model)]
    if path.is_dir() and (models := _gguf_in(path)):
        return [_local(str(path / parts[0].path), key, parts) for key, parts in models.items()]
    if path.is_file() and path.suffix.lower() == ".gguf":
        models = {key: parts for key, parts in _gguf_in(path.parent).items() if path.name in [p.path for p in parts]}
        alone = {path.name: (HubFile(path.name, path.stat().st_size, ""),)}  # named like a part; its header tells more
        return [_local(model, key, parts) for key, parts in (models or alone).items()]
    return [Candidate(model, None, _FOLDER_FIRST, lambda: model)]


def _gguf_in(folder: Path) -> GgufModels:
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return gguf_models([HubFile(file.name, file.stat().st_size, "") for file in files])


def _local(name: str, key: str, parts: Sequence[HubFile]) -> Candidate:
    return Candidate(name, sum(part.size_bytes for part in parts), preference(key), lambda: name)


def _weights_bytes(sizes: Mapping[str, int]) -> int:
    """Bytes of a folder's weight files, which it may have once more under other names (consolidated.safetensors)."""
    weights = {name: size for name, size in sizes.items() if name.endswith(".safetensors") and "/" not in name}
    usual = [size for name, size in weights.items() if name.startswith("model")]
    return sum(usual or weights.values())


def _of_hub(reference: HubReference, folder: Path, progress: HubProgress) -> list[Candidate]:
    with worded(reference.repo, reference.revision):
        commit, files = list_files(reference)
    repository = _Repository(reference, commit, files, folder, progress)
    return [repository.candidate(choice) for choice in all_choices(reference, files)]


@dataclass(frozen=True)
class _Repository:
    reference: HubReference
    commit: str
    files: tuple[HubFile, ...]
    folder: Path
    progress: HubProgress

    def candidate(self, choice: FileChoice) -> Candidate:
        repo = self.reference.repo_at_revision
        if not choice.entry:
            sizes = {file.path: file.size_bytes for file in self.files}
            weights = choice.files[-1].size_bytes if choice.index is None else _weights_bytes(sizes)
            return Candidate(repo, weights, _FOLDER_FIRST, lambda: self._folder(choice))
        size_bytes = sum(file.size_bytes for file in choice.files)
        name = f"{repo}:{PurePosixPath(choice.entry).name}"
        key = f"{model_name(Path(choice.entry))}.gguf"
        return Candidate(name, size_bytes, preference(key), lambda: self._gguf(choice))

    def _gguf(self, choice: FileChoice) -> Path:
        """Files as long as those of a GGUF model, with their headers alone."""
        target = self.folder / choice.entry.replace("/", "--").removesuffix(".gguf")
        target.mkdir()
        with worded(self.reference.repo, self.reference.revision):
            path = write_starts(choice.files, target, hub_starts(self.reference.repo, self.commit))
        return self._sent(path, choice)

    def _folder(self, choice: FileChoice) -> Path:
        """A folder with what describes a model, and files as long as its weights, with their headers alone."""
        repo = self.reference.repo
        with worded(repo, self.reference.revision):
            described = [file for file in choice.files if not file.path.endswith(".safetensors")]
            paths = {file: download(repo, self.commit, file, self.progress) for file in described}
            weights = tuple(file for file in choice.files if file.path.endswith(".safetensors"))
            if choice.index is not None:
                index = read_json(paths[choice.index], INDEX_BYTES, HubError)
                weights += weights_of_index(self.reference, index, self.files)
            folder = described_folder(self.folder, repo, self.commit, paths)
            has_headers = write_safetensors_starts(weights, folder, hub_starts(repo, self.commit))
        return self._sent(folder if has_headers else None, choice)

    def _sent(self, path: Path | None, choice: FileChoice) -> Path:
        if path is None:
            name = choice.entry or "its weights"
            raise HubError(
                f"{self.reference.repo}: {name}: the hub sends no parts of files, or no header is at their beginning, "
                "so what the model takes is not known before it is here; mlxr pull fetches it"
            )
        return path
