"""Makes the tiers of a model's cache: those of K and V, and those of its states, if it keeps any."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import RequestError
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.cache.tiers.tier_sizes import TierSizes
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.weights.weight_file import WeightFile
from mlxr.runtime.weights.weights_digest import weights_digest

_SHARE_OF_STATES = 0.25
"""Of the host memory of tiers."""
NO_WINDOWS = (
    "the cache has no tiers: they would lack what left the windows of layers (compile with cache.keep_windows: true)"
)


def check_states(artifact: Artifact, *, is_split: bool) -> None:
    """Refuses tiers of a model whose states they do not hold.

    Raises:
        RequestError: it keeps states, and no keys, or is split over several ranks.
    """
    arena = artifact.plan.arena
    if arena.num_slots and (is_split or not arena.caches):
        what = "is split over several ranks" if is_split else "keeps no keys"
        raise RequestError(
            f"{artifact.spec.name} keeps a state of each sequence and {what}: tiers do not hold such states; load it "
            "without tiers"
        )


def open_tiers(artifact: Artifact, file: WeightFile, host: Host, sizes: TierSizes) -> BlockTiers | None:
    """The tiers of a host's arena; None where it has several groups of layers (`NO_WINDOWS`)."""
    geometry = host.arena.geometry
    if len(geometry.groups) > 1:
        return None
    make = partial(
        BlockTiers,
        disk_bytes=sizes.disk_bytes,
        folder=None if sizes.folder is None else Path(sizes.folder),
        disk_bytes_per_hour=sizes.disk_bytes_per_hour,
    )
    of_states, states, digest = 0, None, weights_digest(file)
    if geometry.num_slots:
        of_states = int(sizes.memory_bytes * _SHARE_OF_STATES)
        states = make(BlockIdentity.of(artifact, digest, host.name, host.arena, None), memory_bytes=of_states)
    own = replace(BlockIdentity.of(artifact, digest, host.name, host.arena), block_bytes=host.block_bytes)  # all ranks'
    return make(own, memory_bytes=sizes.memory_bytes - of_states, states=states)
