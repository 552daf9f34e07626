"""Which targets cannot compute with the activations that a user asks for."""

from collections.abc import Collection

from mlxr.compiler.targets.registry import TARGETS


def refused_activations(activations: str | None, targets: Collection[str]) -> str | None:
    """Why `--activations` has no effect on any of some targets; None: it has, or it was not given.

    Args:
        activations: the option's value.
        targets: names of targets.
    """
    if activations is None or not all(_refuses(name, activations) for name in targets):
        return None
    takers = " and ".join(name for name in TARGETS if not _refuses(name, activations))
    reasons = ", ".join(
        f"target {name} computes with {' or '.join(TARGETS[name].activations)} ones" for name in targets
    )
    return f"--activations {activations} is for target {takers}: {reasons}"


def _refuses(target: str, activations: str) -> bool:
    return activations not in (TARGETS[target].activations or (activations,))
