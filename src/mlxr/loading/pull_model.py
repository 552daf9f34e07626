"""Fetches a model from the hub, and registers it under the name that it was asked for by."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.hub import HubError
from mlxr.hub.best_file import Need
from mlxr.hub.download import HubProgress
from mlxr.hub.fetch import fetch
from mlxr.hub.reference import hub_reference, is_in_a_folder
from mlxr.loading.add_model import add_model
from mlxr.loading.options import NO_OPTIONS, LoadOptions
from mlxr.loading.planned_memory import planned_memory
from mlxr.registry import NameTakenError
from mlxr.registry.file_status import HashProgress
from mlxr.registry.records import ModelRecord, check_name
from mlxr.registry.registry import Registry, taken
from mlxr.runtime.hosts.select import resolve_host


@dataclass(frozen=True)
class PullProgress:
    """What is told while a model is fetched.

    Attributes:
        announce: called with what will be fetched, before that begins.
        fetching: called while files are fetched and checked.
        hashing: called while small files are hashed for the registry.
    """

    announce: Callable[[str], None]
    fetching: HubProgress
    hashing: HashProgress | None = None


def pull_model(
    model: str,
    name: str | None = None,
    *,
    options: LoadOptions = NO_OPTIONS,
    replaces: bool = False,
    progress: PullProgress,
) -> ModelRecord:
    """Fetches a model that is not here yet, or newer files of one that is, and registers it.

    Args:
        model: ORG/REPO, or ORG/REPO:FILE for one GGUF model of several, by any part of its name (else the best one that
            fits into the memory that is free); ORG/REPO@REVISION is that of a branch, a tag or a commit.
        name: its name in the registry; None: `model` itself.
        options: how it is loaded; where none are given and it was pulled before, those of then hold.
        replaces: whether the name may be that of another model, which then leaves the registry.
        progress: what is told meanwhile.

    Raises:
        HubError: it cannot be fetched.
        RegistryError: the name is taken or cannot be one, or the registry cannot be written.
        MlxrError: it cannot be compiled.
    """
    reference = hub_reference(model)
    if reference is None:
        raise HubError(f"{model!r} is not a model on the hub; expected ORG/REPO, ORG/REPO:FILE or ORG/REPO@REVISION")
    name = str(reference) if name is None else name
    check_name(name)
    other = Registry().get(name)
    pulled_before = other is not None and f"models--{reference.repo.replace('/', '--')}" in other.source.parts
    if other is not None and not (replaces or pulled_before):
        raise NameTakenError(taken(name, other.source))
    if pulled_before and other is not None and options == NO_OPTIONS:
        options = other.options
    known = [file.path.name for file in other.files] if pulled_before and other is not None else []
    fetched = fetch(
        reference, announce=progress.announce, progress=progress.fetching, plan=partial(_need, options), known=known
    )
    return add_model(
        fetched.path, name, options=options, replaces=True, hashes=fetched.hashes, progress=progress.hashing
    )


def _need(options: LoadOptions, path: Path | None) -> Need:
    """What a GGUF model takes with these options for one sequence of a good length, and what is free."""
    free = resolve_host(options.host).load().free_memory()
    if path is None:
        return Need(None, free.free_bytes, free.owner)
    return Need(planned_memory(path, options).good, free.free_bytes, free.owner)


def pull_if_absent(model: str, progress: PullProgress) -> None:
    """Fetches MODEL if it is a model on the hub, and neither a path, nor a bundled or registered model's name.

    Raises:
        MlxrError: as `pull_model`.
    """
    if hub_reference(model) is None or model in bundled_specs() or Path(model).exists() or is_in_a_folder(model):
        return
    if Registry().get(model) is None:
        progress.announce(f"{model}: no such file, and no model of that name here; asking the hub for it")
        pull_model(model, progress=progress)
