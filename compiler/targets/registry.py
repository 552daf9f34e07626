"""The targets, in the order of their programs in an artifact, and users' choice of them.

A new target is one line here.
"""

from collections.abc import Collection, Sequence

from mlxr.compiler.errors import PlanError
from mlxr.compiler.targets.cpu.target import CpuTarget
from mlxr.compiler.targets.metal.target import MetalTarget
from mlxr.compiler.targets.target import Target

TARGETS: dict[str, Target] = {
    "metal": MetalTarget(),
    "cpu": CpuTarget(),
}
"""The targets by their names in commands."""


def choose_targets(names: Sequence[str] | None) -> tuple[str, ...]:
    """The targets to generate code for, in the registry's order: those named, or all.

    Raises:
        PlanError: a name is not a target's, or there is none.
    """
    unknown = [name for name in names or () if name not in TARGETS]
    if unknown or (names is not None and not names):
        problem = f"there is no target {unknown[0]!r}" if unknown else "no target is named"
        raise PlanError(f"{problem}; targets are {', '.join(TARGETS)}")
    return tuple(target for target in TARGETS if names is None or target in names)


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
