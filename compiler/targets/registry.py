"""The targets, in the order of their programs in an artifact. A new target is one line here."""

from mlxr.compiler.targets.cpu.target import CpuTarget
from mlxr.compiler.targets.metal.target import MetalTarget
from mlxr.compiler.targets.target import Target

TARGETS: dict[str, Target] = {
    "metal": MetalTarget(),
    "cpu": CpuTarget(),
}
"""The targets by their names in commands."""
