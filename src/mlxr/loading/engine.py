"""`mlxr.Engine`: the engine of any model that `mlxr.load` can load."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.spec.change import NO_CHANGES, Changes
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.adapter_paths import AnyAdapter, adapter_paths
from mlxr.loading.load import load_with
from mlxr.loading.options import USUAL_SEQUENCES, ExpertsOnCpu, LoadOptions, Mtp
from mlxr.runtime.cache.tiers.tier_sizes import NO_TIERS, TierSizes
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.memory.mmap_choice import Mmap

if TYPE_CHECKING:
    from mlxr.runtime.hosts.host import Progress


class Engine(EngineThread):
    """A model that answers many requests at once; see `mlxr.runtime.engine.engine_thread`.

    For example:

        with mlxr.Engine("model.gguf", max_sequences=16) as engine:
            for completion in engine.generate_all(["Once upon a time", "The fox said"]):
                print(completion.text)
    """

    def __init__(
        self,
        model: "Artifact | ModelSpec | str | os.PathLike[str]",
        weights: "str | Path | None" = None,
        *,
        max_sequences: int = USUAL_SEQUENCES,
        max_waiting: int = 1024,
        host: str = "auto",
        tokenizer: "str | Path | None" = None,
        threads: int | None = None,
        changes: Changes = NO_CHANGES,
        tiers: TierSizes = NO_TIERS,
        draft: "str | os.PathLike[str] | None" = None,
        prompt_lookup: bool = False,
        mtp: Mtp = "auto",
        most_bytes: int | None = None,
        control: str | None = None,
        adapter: AnyAdapter | None = None,
        mmap: Mmap = "auto",
        experts_on_cpu: ExpertsOnCpu = None,
        progress: "Progress | None" = None,
    ) -> None:
        """Loads the model.

        Args:
            model: what `mlxr.load` takes.
            weights: as for `mlxr.load`.
            max_sequences: requests that are computed in one step; others wait.
            max_waiting: requests that may wait; more are refused with QueueFullError.
            host: as for `mlxr.load`.
            tokenizer: as for `mlxr.load`.
            threads: as for `mlxr.load`.
            changes: changes to the model's spec.
            tiers: how much to keep, in host memory and on disk, of the KV cache that the arena has no room for.
            draft: as for `mlxr.load`.
            prompt_lookup: as for `mlxr.load`.
            mtp: as for `mlxr.load`.
            most_bytes: as for `mlxr.load`.
            control: as for `mlxr.load`.
            adapter: as for `mlxr.load`; requests choose by `adapter` of `generate`.
            mmap: as for `mlxr.load`.
            experts_on_cpu: as for `mlxr.load`.
            progress: as for `mlxr.load`.

        Raises:
            TypeError: an argument of a wrong type.
            MlxrError: the model cannot be found, compiled or loaded; see `mlxr.load`.
        """
        options = LoadOptions(
            weights,
            tokenizer,
            host,
            threads,
            changes,
            tiers=tiers,
            draft=draft,
            prompt_lookup=prompt_lookup,
            mtp=mtp,
            most_bytes=most_bytes,
            control=control,
            adapters=adapter_paths(adapter),
            mmap=mmap,
            experts_on_cpu=experts_on_cpu,
            progress=progress,
        )
        super().__init__(partial(load_with, model, options.for_engine(max_sequences)), max_waiting=max_waiting)
