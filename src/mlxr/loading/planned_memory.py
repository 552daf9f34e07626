"""How much memory a model will take, and how long its sequences may be, before anything is loaded."""

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import WeightsError
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.artifact_cache import cached_artifact
from mlxr.loading.eagle_head import eagle_head
from mlxr.loading.find_model import find_model
from mlxr.loading.fit_experts import leaving_experts
from mlxr.loading.options import NO_OPTIONS, LoadOptions
from mlxr.loading.own_head import changes_with_head, head_of
from mlxr.loading.resolve import artifact_of, check_first, chip_of
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.memory.fitting_arena import least_arena

if TYPE_CHECKING:
    from mlxr.runtime.engine.choose_arena import Head
    from mlxr.runtime.hosts.host import Host
    from mlxr.runtime.memory.fitting_arena import Footprint
    from mlxr.runtime.weights.weight_file import WeightFile


_GOOD_TOKENS = 16384
"""Tokens of a sequence that a model should have room for, where the context is left to memory."""


@dataclass(frozen=True)
class PlannedMemory:
    """Bytes of memory of a model, mapped weights included; but not those of a model that is larger than all memory.

    Attributes:
        full: with the arena that the plan has.
        least: with an arena that holds one sequence, of full context or of the least.
        good: with one that a user will find long enough, for one sequence: worth unloading other models.
    """

    full: int
    least: int
    good: int


def planned_memory(model: "str | os.PathLike[str]", options: LoadOptions = NO_OPTIONS) -> PlannedMemory:
    """What `mlxr.load` of this model will take; the model is compiled if it is not yet.

    Raises:
        MlxrError: it cannot be found or compiled.
    """
    from mlxr.runtime.engine.choose_arena import footprint_of  # noqa: PLC0415 (loads MLX)

    artifact, file, entry, threads, head = _found(model, options)
    host, target = entry.load(), entry.target_among(artifact.plan.targets)
    footprint = footprint_of(host, artifact, file, threads, head)
    if _is_larger_than_memory(host, footprint, least_arena(artifact, target).size_bytes, options):
        footprint = replace(footprint_of(host, artifact, file, threads, head, resident=0), mapped_bytes=0)
    full = artifact.plan.programs[target].arena.size_bytes
    least, good = (least_arena(artifact, target, tokens).size_bytes for tokens in (1, _GOOD_TOKENS))
    if artifact.spec.cache.least_context is None:
        good = full
    others = footprint.weights_bytes + footprint.mapped_bytes + footprint.activation_bytes + options.tiers.memory_bytes
    return PlannedMemory(others + full, others + least, others + good)


def _is_larger_than_memory(host: "type[Host]", footprint: "Footprint", arena_bytes: int, options: LoadOptions) -> bool:
    """Whether packed weights are mapped: they do not fit even if nothing else is loaded, or the user wants it."""
    if not host.packs_weights or options.mmap == "off":
        return False
    needed = footprint.weights_bytes + footprint.activation_bytes + options.tiers.memory_bytes + arena_bytes
    return options.mmap == "on" or needed > host.free_memory().total_bytes


def planned_context(model: "str | os.PathLike[str]", options: LoadOptions = NO_OPTIONS) -> str:
    """How long a sequence could be if an engine loaded the model now, and why, for people; see `planned_memory`.

    Raises:
        MlxrError: it cannot be found, compiled or loaded.
    """
    from mlxr.runtime.engine.choose_arena import choose_arena  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.engine.cpu_experts import card_mmap  # noqa: PLC0415
    from mlxr.runtime.memory.fitting_arena import context_line  # noqa: PLC0415

    artifact, file, entry, threads, head = _found(model, options)
    tiers = options.tiers.memory_bytes
    chosen = choose_arena(
        artifact,
        file,
        entry,
        threads=threads,
        tier_memory=tiers,
        shrink=True,
        mmap=card_mmap(artifact, options.mmap),
        head=head,
    )
    return context_line(chosen.limit, chosen.geometry, entry.load().arena_type.takes_pages)


def _found(
    model: "str | os.PathLike[str]", options: LoadOptions
) -> "tuple[Artifact, WeightFile, HostEntry, int | None, Head | None]":
    """The artifact, the weights, the host, its threads, and the head that guesses for the model."""
    from mlxr.runtime.hosts.select import resolve_host  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.weights.open_weights import open_weights  # noqa: PLC0415

    found = find_model(model, options)
    where = resolve_host(found.options.host)
    eagle = eagle_head(found.options)

    def compiled(spec: ModelSpec, own: Path | None) -> Artifact:
        chip = chip_of(where)
        spec = leaving_experts(spec, where, chip, found.options)
        return cached_artifact(spec, chip, partial(check_first, spec, own, eagle))

    artifact, own = artifact_of(found, compiled=compiled, changes=changes_with_head(found.options), eagle=eagle)
    chosen = found.options.weights or own
    if not chosen:
        raise WeightsError(f"{artifact.spec.name} comes without weights: name a file or folder of them (--weights W)")
    file = open_weights(Path(chosen))
    head = head_of(artifact, Path(chosen), found.options, partial(chip_of, where), eagle)
    file = file if head is None or eagle is None else head.file
    return artifact, file, where, found.options.threads, head
