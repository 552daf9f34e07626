"""What MODEL means, and how it is loaded.

It is an artifact, a spec, a bundled model's name, a model's own files, or a name in the user's registry, over which a
path wins.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.artifact_cache import cached_artifact
from mlxr.compiler.artifact import Artifact, Chip, load_artifact
from mlxr.compiler.errors import RequestError
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.parallel.split_for import split_for
from mlxr.compiler.spec.catalog import bundled_specs, find_spec
from mlxr.compiler.spec.change import NO_CHANGES, Changes, changed
from mlxr.compiler.spec.load import load_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.early import Early
from mlxr.loading.options import LoadOptions, merged
from mlxr.named_model import named_model, note_use
from mlxr.runtime.argument_types import PATH, expect
from mlxr.runtime.cache.tiers.tier_sizes import NO_TIERS, TierSizes
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.hosts.registry import AUTO
from mlxr.runtime.parallel.launch import read_launch

if TYPE_CHECKING:
    from mlxr.files_check import FilesCheck
    from mlxr.runtime.engine.model import Model
    from mlxr.runtime.hosts.host import Progress

MODEL_HELP = (
    "an artifact folder, a spec file, a bundled or registered model's name, a .gguf file, or a Hugging Face folder"
)


def load(
    model: "Artifact | ModelSpec | str | os.PathLike[str]",
    weights: "str | Path | None" = None,
    *,
    host: str = "auto",
    tokenizer: "str | Path | None" = None,
    threads: int | None = None,
    changes: Changes = NO_CHANGES,
    tiers: TierSizes = NO_TIERS,
    draft: "str | os.PathLike[str] | None" = None,
    prompt_lookup: bool = False,
    shrink_arena: bool = False,
    most_bytes: int | None = None,
    control: str | None = None,
    ranks: int | None = None,
    needs_text: bool = False,
    progress: "Progress | None" = None,
) -> "Model":
    """Loads a model. If it is not compiled yet, it is compiled for the host, and cached.

    Args:
        model: an artifact, a spec, or what commands take for MODEL, as text or path: an artifact folder, a spec file, a
            bundled model's name, a .gguf file, a Hugging Face or mlx-lm folder, or the name of a registered model. What
            a model was registered with holds where the other arguments have their defaults.
        weights: a .safetensors or .gguf file, a safetensors index, or a folder of them; None: the model's own.
        host: `auto`, `metal`, `cuda`, `cpu`, `sim` or `reference`.
        tokenizer: a tokenizer.json, a tokenizer.model, a GGUF file or a folder; None: looked for in and beside the
            weights.
        threads: how many threads host cpu runs; None: one for each core that this process may use.
        changes: changes to the model's spec: context, sequences, types, memory of the cache.
        tiers: how much to keep, in host memory and on disk, of the KV cache that the arena has no room for.
        draft: a smaller model of the same vocabulary, named like `model`. It guesses tokens, and a step of the model
            checks several of them: the answers are the same, and come faster where most guesses are right.
        prompt_lookup: whether tokens are guessed without a model, where the text repeats itself.
        shrink_arena: whether the arena may be smaller than the spec says, if this machine lacks memory now.
        most_bytes: memory that it may take, mapped weights included, a draft model not; None: what is free.
        control: of a model that is split over several ranks: HOST:PORT at which rank 0 listens for the others; None:
            chosen.
        ranks: over how many ranks a model that is not compiled yet is split, where its spec does not say; None: as many
            as `mlx.launch` started. 1: each of these loads a whole model for itself.
        needs_text: whether a model without a tokenizer that can be used is refused, before anything is compiled; token
            ids need none.
        progress: called with what is being loaded and how far it is.

    Raises:
        SystemExit: this process is one of a split model's ranks, but not the first one, and that has ended.
        TypeError: an argument of a wrong type.
        MlxrError: it cannot be found, compiled or loaded; see `Model`.
    """
    return load_with(
        model,
        LoadOptions(
            weights,
            tokenizer,
            host,
            threads,
            changes,
            tiers=tiers,
            draft=draft,
            prompt_lookup=prompt_lookup,
            shrink_arena=shrink_arena,
            most_bytes=most_bytes,
            control=control,
            ranks=ranks,
            needs_text=needs_text,
            progress=progress,
        ),
    )


def load_with(model: "Artifact | ModelSpec | str | os.PathLike[str]", options: LoadOptions) -> "Model":
    """Loads a model; see `load`."""
    from mlxr.files_check import FilesCheck  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.hosts.select import resolve_host  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.weights.gguf_header import headers_read_once  # noqa: PLC0415

    expect("model", model, (Artifact, ModelSpec, *PATH), "an artifact, a spec, or a name or path")
    if not isinstance(model, Artifact | ModelSpec) and (registered := named_model(os.fspath(model))) is not None:
        options = options.over(registered.options)
        loaded = load_with(registered.source, options)
        note_use(registered)
        if options.template is not None:
            loaded.use_template(options.template, f"the template that {registered.name} was added with")
        return loaded
    where, changes = resolve_host(options.host), options.changes
    if where.activations and changes.activation_dtype not in (None, *where.activations):
        raise RequestError(
            f"activations are {changes.activation_dtype}, but host {where.name} computes with "
            f"{' or '.join(where.activations)} ones: leave the option out"
        )
    with headers_read_once(), _garbage_waits(), where.building_ahead() as begin:
        own = None
        # Of a model's own files, the spec comes from these very weights.
        of_files = not options.weights and isinstance(model, PATH) and _is_of_files(model)
        check = FilesCheck(options, of_files)

        def compiled(spec: ModelSpec, own: Path | None) -> Artifact:
            early = where.target and Early(where.target, lambda sources: begin(sources, spec.name))
            return cached_artifact(spec, chip_of(where), partial(check, spec, own), early or None)

        if where.deterministic and not _is_compiled(model):
            changes = replace(changes, deterministic=True)
        count = _started() if options.ranks is None else options.ranks
        changes = _split(model, changes, count)
        if isinstance(model, Artifact):
            artifact = _as_changed(model, changes)
        elif isinstance(model, ModelSpec):
            artifact = compiled(changed(model, changes), None)
        else:
            name = os.fspath(model)
            artifact, own = resolve_artifact(name, changes, chip_of(where), compiled)
        _refuse_whole(artifact, count)
        chosen = check.path(artifact.spec, own)
        loaded = _made(artifact, chosen, options, None if of_files else check.check_spec, check)
        if options.prompt_lookup or options.draft is not None:
            try:
                loaded.speculate(None if options.draft is None else _load_draft(options.draft, loaded, options))
            except BaseException:
                loaded.close()
                raise
        return loaded


@contextmanager
def _garbage_waits() -> Iterator[None]:
    """A context in which Python looks for no garbage: among a vocabulary and graphs that takes a sixth of a load."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _started() -> int:
    """How many ranks `mlx.launch` started; 1: this process is alone."""
    launch = read_launch(os.environ)
    return 1 if launch is None else launch.size


def _split(model: "Artifact | ModelSpec | str | os.PathLike[str]", changes: Changes, ranks: int) -> Changes:
    """The changes, and how to split a model that is not compiled yet."""
    if ranks == 1 or isinstance(model, Artifact) or _is_compiled(model):
        return changes
    if isinstance(model, ModelSpec):
        spec = changed(model, changes)
    else:
        spec, _ = resolve_spec(os.fspath(model), changes)
    return replace(changes, parallel=split_for(spec, ranks))


def _refuse_whole(artifact: Artifact, ranks: int) -> None:
    """Refuses a model of one machine where several ranks were started, each of which would load it."""
    if ranks > 1 and artifact.parallel is None:
        raise RequestError(
            f"{artifact.spec.name} is compiled for one machine, and {ranks} ranks were started: compile it with "
            f"mlxr-compile SPEC --tensor-parallel {ranks}, or start it without mlx.launch"
        )


def _made(
    artifact: Artifact,
    weights: Path,
    options: LoadOptions,
    compare: Callable[[ModelSpec, Path], object] | None,
    check: "FilesCheck",
) -> "Model":
    """The model, once its weights are checked; of a split one, each rank checks when all can be told."""
    from mlxr.load_rank import load_rank, make_model  # noqa: PLC0415 (loads MLX)

    compares = None if compare is None else partial(compare, artifact.spec, weights)
    if artifact.parallel is not None:
        return load_rank(artifact, weights, options, check=compares, read=check.read)
    if compares is not None:
        compares()
    return make_model(artifact, weights, options, read=check.read)


def _load_draft(model: "str | os.PathLike[str]", target: "Model", options: LoadOptions) -> "Model":
    """Loads a draft model with as many sequences as the model. Beyond its context, it guesses nothing."""
    return load_with(model, options.for_draft(target.artifact.plan.arena.max_sequences))


def chip_of(host: HostEntry) -> Chip | None:
    """The chip that a host runs on, if launch geometry depends on it and it is known."""
    if not (name := host.gpu_name()):
        return None
    from mlxr.compiler.chips.catalog import find_chip_of_device  # noqa: PLC0415 (only where there is a GPU)

    return find_chip_of_device(name)


def here() -> Chip | None:
    """The chip of this machine's GPU, if there is one and it is known."""
    from mlxr.runtime.hosts.select import resolve_host  # noqa: PLC0415 (loads MLX)

    return chip_of(resolve_host(AUTO))


def resolve_artifact(
    name: str,
    changes: Changes = NO_CHANGES,
    chip: Chip | None = None,
    compiled: "Callable[[ModelSpec, Path | None], Artifact] | None" = None,
) -> tuple[Artifact, Path | None]:
    """The artifact of MODEL (compiled now or found in the cache), and the weights that belong to it, if any.

    An artifact that differs from what the changes ask for is compiled again, from its own spec and for its own chip.
    Any other must be what its spec compiles to, unless `changes.trust_artifact` says that it may run as it is.

    Args:
        name: MODEL.
        changes: changes to its spec.
        chip: the chip whose launch geometry to take where there is no artifact yet; None: none in particular.
        compiled: what gives the artifact of a spec, with weights of its own or without; None: the cache and compiler.

    Raises:
        MlxrError: there is no such model, it cannot be compiled with these changes, or it is an edited artifact.
    """
    name, changes, weights = _by_path(name, changes)
    if _is_compiled(name):
        return _of_folder(Path(name), changes), weights
    spec, own = resolve_spec(name, changes)
    if compiled is not None:
        return compiled(spec, own), weights or own
    return cached_artifact(spec, chip, partial(check_first, spec, own)), weights or own


def check_first(spec: ModelSpec, own: Path | None) -> None:
    """What is checked before a spec is compiled that comes with weights of its own; see `check_tensors_first`."""
    if own is not None:
        from mlxr.check_first import check_tensors_first  # noqa: PLC0415 (slow to import: not for what is cached)

        check_tensors_first(spec, own)


def _by_path(name: str, changes: Changes) -> tuple[str, Changes, Path | None]:
    """MODEL without the registry: the path of a registered model, its changes with these, and its weights if others."""
    if (model := named_model(name)) is None:
        return name, changes, None
    weights = model.options.weights
    merges = merged(model.options.changes, changes)
    return os.fspath(model.source), merges, None if weights is None else Path(weights)


def _is_of_files(model: "str | os.PathLike[str]") -> bool:
    """Whether MODEL is a model's own files."""
    from mlxr.imported_model import is_model_file  # noqa: PLC0415 (reads GGUF: only when needed)

    return os.fspath(model) not in bundled_specs() and is_model_file(Path(model))


def _is_compiled(model: "Artifact | ModelSpec | str | os.PathLike[str]") -> bool:
    """Whether MODEL is an artifact, or a folder that can only be one."""
    if isinstance(model, Artifact | ModelSpec):
        return isinstance(model, Artifact)
    return Path(model).is_dir() and os.fspath(model) not in bundled_specs() and not _is_of_files(model)


def resolve_spec(name: str, changes: Changes = NO_CHANGES) -> tuple[ModelSpec, Path | None]:
    """The spec of MODEL, which is not an artifact, and the weights that belong to it, if any.

    Args:
        name: MODEL.
        changes: changes to its spec.

    Raises:
        MlxrError: there is no such model, or its spec contradicts itself or the changes.
    """
    name, changes, weights = _by_path(name, changes)
    path = Path(name)
    if name not in bundled_specs():
        from mlxr.imported_model import import_model, is_model_file  # noqa: PLC0415 (reads GGUF: only when needed)

        if is_model_file(path):
            options = ImportOptions(
                changes.context,
                changes.needed_context,
                changes.sequences,
                changes.compute or "fast",
                changes.activation_dtype,
                changes.cache_dtype,
                changes.accepted_keys,
                changes.force_context,
                changes.cache_memory,
                changes.deterministic,
                changes.output or "logits",
            )
            spec, own = import_model(path, options)
            return changed(spec, Changes(parallel=changes.parallel)), weights or own
    spec_path = find_spec(name)
    spec = load_spec(spec_path)
    bundled = spec_path.parent / f"{spec.name}-q8_0.gguf"
    return changed(spec, changes), weights or (bundled if bundled.is_file() else None)


def _of_folder(folder: Path, changes: Changes) -> Artifact:
    artifact = load_artifact(folder)
    result = _as_changed(artifact, changes)
    if result is artifact and not changes.trust_artifact:
        from mlxr.compiled_from_spec import check_compiled_from_spec  # noqa: PLC0415 (slow to import: only when needed)

        check_compiled_from_spec(artifact, folder)
    return result


def _as_changed(artifact: Artifact, changes: Changes) -> Artifact:
    spec = changed(artifact.spec, changes)
    return artifact if spec == artifact.spec else cached_artifact(spec, artifact.chip)
