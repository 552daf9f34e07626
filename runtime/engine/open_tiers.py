"""Makes the tiers of a model's cache."""

from dataclasses import replace
from pathlib import Path

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.cache.tiers.tier_sizes import TierSizes
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.weights.weight_file import WeightFile
from mlxr.runtime.weights.weights_digest import weights_digest


def why_no_tiers(artifact: Artifact) -> str:
    """Why `open_tiers` gives none, for people."""
    if artifact.plan.whole_prompts:
        why = "an encoder keeps nothing of texts"
    elif any(group.window for group in artifact.plan.arena.groups):
        why = "they would lack what left the windows of layers (compile with cache.keep_windows: true)"
    else:
        whose = "layers" if artifact.spec.model.eagle is None else "the model's layers and its head's"
        why = f"{whose} keep keys and values of several sizes"
    return f"the cache has no tiers: {why}"


def open_tiers(artifact: Artifact, file: WeightFile, host: Host, sizes: TierSizes) -> BlockTiers | None:
    """The tiers of a host's arena; None where it has several groups of layers, or none (`why_no_tiers`)."""
    geometry = host.arena.geometry
    if len(geometry.groups) > 1 or artifact.plan.whole_prompts:
        return None
    own = BlockIdentity.of(artifact, weights_digest(file), host.name, host.arena)
    return BlockTiers(
        replace(own, block_bytes=host.block_bytes, state_bytes=host.slot_bytes),  # of all ranks
        memory_bytes=sizes.memory_bytes,
        disk_bytes=sizes.disk_bytes,
        folder=None if sizes.folder is None else Path(sizes.folder),
        disk_bytes_per_hour=sizes.disk_bytes_per_hour,
    )
