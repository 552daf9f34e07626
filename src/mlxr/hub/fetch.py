"""Fetches a model: asks the hub what a repository has, chooses files, checks the room, downloads."""

import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import NoTokenizerError, SpecError
from mlxr.compiler.importers.text_model import find_text_model
from mlxr.compiler.text import counted, size
from mlxr.hub import HubError
from mlxr.hub.best_file import Planner, best_file, fetched_before
from mlxr.hub.choose_files import GgufModels, HubFile, choose_files, weights_of_index
from mlxr.hub.download import HubProgress, bytes_here, download
from mlxr.hub.file_start import StartReader, hub_starts, write_safetensors_starts, write_starts
from mlxr.hub.reference import HubReference
from mlxr.hub.worded_errors import worded
from mlxr.runtime.json_file import read_json, read_json_object
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer

_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_WORTH_A_LOOK = 256 << 20
"""Bytes of a GGUF model from which on its first few MiB are fetched twice, to know whether the others are wanted."""
INDEX_BYTES = 64 << 20


@dataclass(frozen=True)
class FetchedModel:
    """A model that is here now.

    Attributes:
        path: what MODEL is: a GGUF file or a folder.
        hashes: SHA-256 of its large files, by path, as they are on disk.
    """

    path: Path
    hashes: Mapping[Path, str]


def fetch(
    reference: HubReference,
    *,
    announce: Callable[[str], None],
    progress: HubProgress,
    plan: Planner,
    known: Collection[str] = (),
) -> FetchedModel:
    """Fetches the files of a model that are not here yet, and checks all of them.

    Args:
        reference: the model.
        announce: called once with what will be fetched, before that begins.
        progress: called while files are fetched and checked.
        plan: what a model takes, for the choice among several, and before a folder is fetched that may not fit.
        known: names of files that were fetched before: their model is chosen again.

    Raises:
        HubError: there is no such model, it may not be fetched, the hub cannot be reached, a file arrives damaged, or
            there is no room.
        SpecError: the model's config.json is of an architecture that MLXR does not know.
        TokenizerError: its tokenizer is not supported.
    """
    with worded(reference.repo, reference.revision):
        commit, files = list_files(reference)

        def best(models: GgufModels) -> tuple[HubFile, ...]:
            if (before := fetched_before(models, known)) is not None:
                return before
            return best_file(reference.repo, models, plan, hub_starts(reference.repo, commit), announce)

        choice = choose_files(reference, files, best)
        paths: dict[HubFile, Path] = {}

        def get(wanted: Sequence[HubFile]) -> None:
            paths.update((file, download(reference.repo, commit, file, progress)) for file in wanted)

        # The small files first: one says what others there are, one whether the model can run at all.
        first = [file for file in choice.files if file == choice.index or file.path in file_keys.DESCRIBING_FILES]
        first_here = _check_room(reference.repo, first)
        get(first)
        _check_architecture(paths)
        _check_tokenizer(paths)
        if choice.entry is not None:
            parts = [file for file in choice.files if file.path.lower().endswith(".gguf")]
            _check_gguf_tokenizer(reference.repo, parts, hub_starts(reference.repo, commit))
        wanted = choice.files
        if choice.index is not None:
            index = read_json(paths[choice.index], INDEX_BYTES, HubError)
            wanted += weights_of_index(reference, index, files)
        if not choice.entry and reference.file is None:
            weights = [file for file in wanted if file not in paths]
            _check_memory(reference.repo, commit, paths, weights, plan, hub_starts(reference.repo, commit))
        here = _check_room(reference.repo, wanted) - sum(file.size_bytes for file in first) + first_here
        total = sum(file.size_bytes for file in wanted)
        already = f", {size(here)} of it here already" if here else ""
        announce(f"fetching {reference}: {counted(len(wanted), 'file')}, {size(total)}{already}")
        get([file for file in wanted if file not in paths])
    entry = choice.entry or file_keys.CONFIG_FILE
    own = next(path for file, path in paths.items() if file.path == entry)
    hashes = {path: file.digest for file, path in paths.items() if len(file.digest) == 64}
    return FetchedModel(own if choice.entry else own.parent, hashes)


def list_files(reference: HubReference) -> tuple[str, tuple[HubFile, ...]]:
    """The commit of a repository that is meant, and its files. It raises what huggingface_hub raises; see `worded`.

    Raises:
        HubError: the answer is not a hub's.
    """
    from huggingface_hub import HfApi, constants  # noqa: PLC0415 (slow to import)

    info = HfApi(endpoint=constants.ENDPOINT).model_info(
        reference.repo, revision=reference.revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
    )
    files = []
    for sibling in info.siblings or ():
        size_bytes = sibling.size if sibling.lfs is None else sibling.lfs.size
        digest = sibling.blob_id if sibling.lfs is None else sibling.lfs.sha256
        if size_bytes is not None and size_bytes >= 0 and digest and _DIGEST.fullmatch(digest):
            files.append(HubFile(sibling.rfilename, size_bytes, digest))
    if info.sha is None or not _COMMIT.fullmatch(info.sha):
        raise HubError(f"{reference}: {constants.ENDPOINT} does not say which commit that is; is this a hub?")
    return info.sha, tuple(files)


def _check_room(repo: str, files: Sequence[HubFile]) -> int:
    """Refuses what does not fit on the disk; returns how many bytes are here already."""
    from huggingface_hub import constants  # noqa: PLC0415

    here = sum(bytes_here(repo, file) for file in files)
    missing = sum(file.size_bytes for file in files) - here
    folder = Path(constants.HF_HUB_CACHE).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise HubError(
            f"{repo}: {size(missing)} are to be fetched, and {size(free)} are free in {constants.HF_HUB_CACHE}; make "
            "room, or set HF_HUB_CACHE to a folder on another disk"
        )
    return here


def _check_tokenizer(paths: Mapping[HubFile, Path]) -> None:
    """Refuses a tokenizer that is not supported before large files are fetched."""
    for file, path in paths.items():
        if file.path == file_keys.CONFIG_FILE:
            with suppress(NoTokenizerError):
                load_tokenizer(path.parent)


def _check_gguf_tokenizer(repo: str, files: Sequence[HubFile], start_of: StartReader) -> None:
    """The same for a tokenizer in a GGUF file, of which only the first bytes are read."""
    size_bytes = sum(file.size_bytes for file in files)
    if size_bytes < _WORTH_A_LOOK or sum(bytes_here(repo, file) for file in files) == size_bytes:
        return
    with TemporaryDirectory(prefix="mlxr-") as folder:
        path = write_starts(files[:1], Path(folder), start_of)
        if path is not None:
            with suppress(NoTokenizerError):
                load_tokenizer(path)


def _check_memory(
    repo: str,
    commit: str,
    described: Mapping[HubFile, Path],
    weights: Sequence[HubFile],
    plan: Planner,
    start_of: StartReader,
) -> None:
    """Refuses a folder that takes more memory than is free, by the headers of its weights, before they are fetched.

    Args:
        repo: the repository.
        commit: of it.
        described: the files that are here, which describe the model.
        weights: its weights.
        plan: what a model takes.
        start_of: reads the first bytes of a file.

    Raises:
        HubError: it does not fit.
        MlxrError: it is not supported.
    """
    size_bytes = sum(file.size_bytes for file in weights)
    if size_bytes < _WORTH_A_LOOK or sum(bytes_here(repo, file) for file in weights) == size_bytes:
        return
    with TemporaryDirectory(prefix="mlxr-") as temporary:
        folder = described_folder(Path(temporary), repo, commit, described)
        need = plan(folder if write_safetensors_starts(weights, folder, start_of) else None)
    if (needed := need.of(size_bytes)) > need.free_bytes:
        raise HubError(
            f"{repo}: {need.source} it takes {size(needed)} of memory, and {need.owner} has {size(need.free_bytes)} "
            f"free: close other programs, look for a repository that has it with fewer bits (such as GGUF files), or "
            f"fetch it all the same, as {repo}:safetensors"
        )


def described_folder(parent: Path, repo: str, commit: str, described: Mapping[HubFile, Path]) -> Path:
    """A new folder with links to files that describe a model.

    It is named as in the cache, so that what is compiled of it is what will be loaded.
    """
    folder = Path(parent, f"models--{repo.replace('/', '--')}", "snapshots", commit)
    folder.mkdir(parents=True)
    for file, path in described.items():
        (folder / file.path).parent.mkdir(exist_ok=True)
        (folder / file.path).symlink_to(path)
    return folder


def _check_architecture(paths: Mapping[HubFile, Path]) -> None:
    for file, path in paths.items():
        if file.path == file_keys.CONFIG_FILE:
            config = read_json_object(path, file_keys.CONFIG_BYTES, SpecError)
            find_text_model(str(path), config)
