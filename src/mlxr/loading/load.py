"""Loads a model: finds it, compiles what is not compiled yet, and makes it ready to generate."""

import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import GraphError, MlxrError, PlanError, RequestError, SpecError
from mlxr.compiler.parallel.split_for import split_for
from mlxr.compiler.spec.change import NO_CHANGES, Changes, changed
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.early import Early
from mlxr.loading.adapter_paths import AnyAdapter, adapter_paths
from mlxr.loading.artifact_cache import cached_artifact
from mlxr.loading.eagle_head import EagleHead, eagle_head
from mlxr.loading.find_model import FoundModel, find_model
from mlxr.loading.fit_experts import leaving_experts
from mlxr.loading.options import ExpertsOnCpu, LoadOptions, Mtp
from mlxr.loading.own_head import changes_with_head, has_head, head_of
from mlxr.loading.resolve import artifact_of, chip_of, spec_of
from mlxr.registry.file_status import note_use
from mlxr.runtime.cache.tiers.tier_sizes import NO_TIERS, TierSizes
from mlxr.runtime.garbage_waits import garbage_waits
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.memory.mmap_choice import Mmap
from mlxr.runtime.parallel.launch import read_launch

if TYPE_CHECKING:
    from mlxr.runtime.engine.model import Model
    from mlxr.runtime.hosts.host import Progress

_LOG = logging.getLogger(__name__)


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
    mtp: Mtp = "auto",
    shrink_arena: bool = False,
    most_bytes: int | None = None,
    control: str | None = None,
    ranks: int | None = None,
    needs_text: bool = False,
    adapter: AnyAdapter | None = None,
    mmap: Mmap = "auto",
    experts_on_cpu: ExpertsOnCpu = None,
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
        draft: a smaller model of the same vocabulary, named like `model`, or a head of EAGLE-3 that was trained for the
            model. It guesses tokens, and a step of the model checks several of them: the answers are the same, and come
            faster where most guesses are right.
        prompt_lookup: whether tokens are guessed without a model, where the text repeats itself.
        mtp: whether the model's own head guesses tokens, if it has one for multi-token prediction: `auto`: as long as
            that pays, and not beside a draft model or prompt lookup; `on`: there must be one; `off`: never.
        shrink_arena: whether the arena may be smaller than the spec says, if this machine lacks memory now.
        most_bytes: memory that it may take, mapped weights included, a draft model not; None: what is free.
        control: of a model that is split over several ranks: HOST:PORT at which rank 0 listens for the others; None:
            chosen.
        ranks: over how many ranks a model that is not compiled yet is split, where its spec does not say; None: as many
            as `mlx.launch` started. 1: each of these loads a whole model for itself.
        needs_text: whether a model without a tokenizer that can be used is refused, before anything is compiled; token
            ids need none.
        adapter: a LoRA adapter, of PEFT, mlx-lm or GGUF, that all generations use; or several by name, of which they
            choose one. A path may end with :SCALE.
        mmap: whether host cpu maps quantised weights from a file of the cache, which it packs once, so that the model
            may be larger than memory, or packs them into memory: `auto`: where they do not fit into memory, where
            packing takes long, and where the file is there already; `on`, `off`: always, never.
        experts_on_cpu: of how many layers, from the first on, the CPU computes the chosen experts beside a card, which
            then need none of its memory: `auto`: of as few as are needed for the rest to fit; None: as the spec says.
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
            mtp=mtp,
            shrink_arena=shrink_arena,
            most_bytes=most_bytes,
            control=control,
            ranks=ranks,
            needs_text=needs_text,
            adapters=adapter_paths(adapter),
            mmap=mmap,
            experts_on_cpu=experts_on_cpu,
            progress=progress,
        ),
    )


def load_with(model: "Artifact | ModelSpec | str | os.PathLike[str]", options: LoadOptions) -> "Model":
    """Loads a model; see `load`."""
    return load_found(find_model(model, options))


def load_found(found: FoundModel) -> "Model":
    """Loads a model that was found; see `load`."""
    from mlxr.runtime.hosts.select import resolve_host  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.weights.headers_read_once import headers_read_once  # noqa: PLC0415

    found = replace(found, options=found.options.with_places())
    where = resolve_host(found.options.host)
    _check_types(where, found.options.changes)
    if where.deterministic and found.kind != "artifact":
        changes = replace(found.options.changes, deterministic=True)
        found = replace(found, options=replace(found.options, changes=changes))
    with headers_read_once(), garbage_waits():
        model = _with_or_without_head(found, where)
        _speculate(model, found.options)
        _load_adapters(model, found.options)
    if found.registered is not None:
        note_use(found.registered)
    if (template := found.options.template) is not None:
        known = found.registered
        is_given = known is None or template != known.options.template
        source = "given to load" if is_given or known is None else f"that {known.name} was added with"
        model.use_template(template, f"the template {source}")
    return model


def _load_adapters(model: "Model", options: LoadOptions) -> None:
    """Loads the adapters that the options name."""
    try:
        for adapter in options.adapters.paths:
            loaded = model.load_adapter(adapter.path, adapter.name, adapter.scale)
            if options.adapters.for_all:
                model.default_adapter = loaded.name
    except BaseException:
        model.close()
        raise


def _check_types(host: HostEntry, changes: Changes) -> None:
    """Refuses activations of a type with which the host does not compute."""
    if host.activations and changes.activation_dtype not in (None, *host.activations):
        raise RequestError(
            f"activations are {changes.activation_dtype}, but host {host.name} computes with "
            f"{' or '.join(host.activations)} ones: leave the option out"
        )


def _with_or_without_head(found: FoundModel, host: HostEntry) -> "Model":
    """The model with its own head, if it may have one; with `auto`, one that cannot be used is left out with a note."""
    ranks = _started() if found.options.ranks is None else found.options.ranks
    changes = changes_with_head(found.options, ranks)
    eagle = eagle_head(found.options, ranks)
    try:
        return _compile_and_make(found, changes, host, ranks, eagle)
    except MlxrError as error:
        without = changes_with_head(found.options, ranks, may_use=False)
        if found.options.mtp != "auto" or not changes.mtp or not _is_of_head(error, found, without):
            raise
        model = _compile_and_make(found, without, host, ranks)
        _LOG.warning("note: the model's own head is not used: %s", error)
        return model


def _is_of_head(error: MlxrError, found: FoundModel, without: Changes) -> bool:
    """Whether a model could not be loaded because of its head: with `without`, it has none."""
    if error.of_head:
        return True
    if not isinstance(error, SpecError | GraphError | PlanError) or not has_head(found):
        return False
    if found.kind == "artifact":
        return True
    try:
        spec_of(found, without)
    except MlxrError:
        return False
    return True


def _compile_and_make(
    found: FoundModel, changes: Changes, host: HostEntry, ranks: int, eagle: EagleHead | None = None
) -> "Model":
    """The model, once its files are checked; what is not compiled yet is compiled for the host."""
    from mlxr.loading.files_check import FilesCheck  # noqa: PLC0415 (loads MLX)
    from mlxr.loading.make_model import make_checked  # noqa: PLC0415 (loads MLX)

    options = found.options
    # Of a model's own files, the spec comes from these very weights.
    check = FilesCheck(options, of_files=not options.weights and found.kind == "files", head=eagle)
    with host.building_ahead() as begin:

        def compiled(spec: ModelSpec, own: Path | None) -> Artifact:
            if ranks > 1:
                spec = changed(spec, Changes(parallel=split_for(spec, ranks)))
            chip = chip_of(host)
            spec = leaving_experts(spec, host, chip, options)
            early = host.target and Early(
                host.target, lambda program, sources: begin.program(program, sources, spec.name), begin.kernel
            )
            return cached_artifact(spec, chip, partial(check, spec, own), early or None)

        artifact, own = artifact_of(found, compiled=compiled, changes=changes, eagle=eagle)
        _refuse_whole(artifact, ranks)
        chip = partial(chip_of, host)
        return make_checked(artifact, own, options, check, partial(head_of, options=options, chip=chip, eagle=eagle))


def _speculate(model: "Model", options: LoadOptions) -> None:
    """Has tokens guessed, if the options ask for it. Beyond a draft model's context, it guesses nothing."""
    if not options.prompt_lookup and options.draft is None:
        return
    if model.artifact.spec.model.eagle is not None:  # the draft is a head, which guesses already
        return
    try:
        draft = None
        if options.draft is not None:
            sequences = model.artifact.plan.arena.max_sequences
            draft = load_with(options.draft, options.for_draft(sequences))
        model.speculate(draft)
    except BaseException:
        model.close()
        raise


def _started() -> int:
    """How many ranks `mlx.launch` started; 1: this process is alone."""
    launch = read_launch(os.environ)
    return 1 if launch is None else launch.size


def _refuse_whole(artifact: Artifact, ranks: int) -> None:
    """Refuses a model of one machine where several ranks were started, each of which would load it."""
    if ranks > 1 and artifact.parallel is None:
        raise RequestError(
            f"{artifact.spec.name} is compiled for one machine, and {ranks} ranks were started: compile it with "
            f"mlxr-compile SPEC --tensor-parallel {ranks}, or start it without mlx.launch"
        )
