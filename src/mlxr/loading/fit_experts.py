"""How many layers' experts a card leaves to the CPU, so that the rest of a model fits into its memory."""

from typing import TYPE_CHECKING

from mlxr.compiler.artifact import Artifact, Chip
from mlxr.compiler.errors import HostError
from mlxr.compiler.spec.change import Changes, changed
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.artifact_cache import cached_artifact
from mlxr.loading.options import LoadOptions

if TYPE_CHECKING:
    from mlxr.runtime.hosts.entry import HostEntry
    from mlxr.runtime.memory.free_memory import FreeMemory


def leaving_experts(
    spec: ModelSpec, host: "HostEntry", chip: Chip | None, options: LoadOptions, free: "FreeMemory | None" = None
) -> ModelSpec:
    """The spec with the experts of as few layers as possible on the CPU, where the card would lack memory for all.

    Args:
        spec: the spec.
        host: the host that will run it.
        chip: as for `cached_artifact`.
        options: how it is loaded; another `experts_on_cpu` than `auto` leaves the spec as it is.
        free: what is free of the card's memory; None: as the host says.

    Raises:
        MlxrError: it cannot be compiled.
    """
    if options.experts_on_cpu != "auto":
        return spec
    layers = spec.model.layers
    if (
        not host.leaves_experts
        or spec.parallel is not None
        or not any(layer.mlp and layer.mlp.experts for layer in layers)
    ):
        return spec
    free = free or host.load().free_memory()
    whole = cached_artifact(changed(spec, Changes(experts_on_cpu=0)), chip)
    count = fewest_layers(whole, host, options, free)
    while 0 < count < len(layers):  # its activations may be a little larger than those of the whole
        cut = changed(spec, Changes(experts_on_cpu=count))
        if _fits(cached_artifact(cut, chip), 0, host, options, free):
            break
        count += 1
    return changed(spec, Changes(experts_on_cpu=count))


def fewest_layers(whole: Artifact, host: "HostEntry", options: LoadOptions, free: "FreeMemory") -> int:
    """How many layers, from the first on, must leave their experts to the CPU; all, if even that is too few.

    Args:
        whole: the model with all experts on the card.
        host: the card's.
        options: how it is loaded.
        free: what is free of the card's memory.
    """
    gone = 0
    for count, own in enumerate([0, *expert_bytes(whole)]):
        gone += own
        if (own or count == 0) and _fits(whole, gone, host, options, free):
            return count
    return max(index for index, own in enumerate(expert_bytes(whole), 1) if own)


def _fits(artifact: Artifact, less: int, host: "HostEntry", options: LoadOptions, free: "FreeMemory") -> bool:
    """Whether a card has room for a model whose weights take so many bytes less."""
    from mlxr.runtime.memory.fitting_arena import Footprint, fitting_arena  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.memory.free_memory import FreeMemory  # noqa: PLC0415

    target = host.target_among(artifact.plan.targets)
    memory, most = artifact.plan.program(target).memory, options.most_bytes
    if most is not None and most < free.free_bytes:
        free = FreeMemory(most, most, free.owner)
    footprint = Footprint(memory.weights_bytes - less, 0, memory.activation_bytes)
    shrink, needed = options.shrink_arena, options.changes.needed_context
    try:
        fitting_arena(artifact, target, footprint, free, shrink=shrink, needed_context=needed)
    except HostError:
        return False
    return True


def expert_bytes(whole: Artifact) -> list[int]:
    """By layer the bytes of its chosen experts' matrices."""
    sizes = [0] * whole.spec.model.num_layers
    for weight in whole.plan.weights:
        name = weight.parts[0].name
        if ".mlp.experts." in name and len(weight.shape) == 2:
            sizes[int(name.split(".")[1])] += weight.size_bytes
    return sizes
