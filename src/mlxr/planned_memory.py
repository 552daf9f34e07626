"""How much memory a model will take, by its plan, before anything is loaded."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxr.compiler.errors import WeightsError
from mlxr.compiler.spec.change import NO_CHANGES, Changes
from mlxr.model_source import chip_of, resolve_artifact
from mlxr.named_model import named_model
from mlxr.runtime.cache.tiers.tier_sizes import NO_TIERS, TierSizes
from mlxr.runtime.memory.fitting_arena import least_arena

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class PlannedMemory:
    """Bytes of memory of a model, mapped weights included.

    Attributes:
        full: with the arena that the plan has.
        least: with an arena that holds one sequence of full context.
    """

    full: int
    least: int


def planned_memory(
    model: "str | os.PathLike[str]",
    weights: "str | Path | None" = None,
    *,
    host: str = "auto",
    threads: int | None = None,
    changes: Changes = NO_CHANGES,
    tiers: TierSizes = NO_TIERS,
) -> PlannedMemory:
    """What `mlxr.load` of these arguments will take; the model is compiled if it is not yet.

    Raises:
        MlxrError: it cannot be found or compiled.
    """
    from mlxr.runtime.hosts.select import resolve_host  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.weights.open_weights import open_weights  # noqa: PLC0415

    if (registered := named_model(os.fspath(model))) is not None:
        host, threads = registered.options.place(host, threads)
    where = resolve_host(host)
    artifact, own = resolve_artifact(os.fspath(model), changes, chip_of(where))
    chosen = weights or own
    if not chosen:
        raise WeightsError(f"{artifact.spec.name} comes without weights: name a file or folder of them (--weights W)")
    footprint = where.load().footprint(artifact, open_weights(chosen), threads)
    arena = artifact.plan.programs[where.target_among(artifact.plan.targets)].arena
    others = footprint.weights_bytes + footprint.mapped_bytes + footprint.activation_bytes + tiers.memory_bytes
    return PlannedMemory(others + arena.size_bytes, others + least_arena(arena).size_bytes)
