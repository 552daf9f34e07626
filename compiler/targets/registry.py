"""The targets, in the order in which artifacts have their programs. A new target is one line here."""

from mlxr.compiler.targets.cpu.target import CpuTarget
from mlxr.compiler.targets.metal.target import MetalTarget
from mlxr.compiler.targets.target import Target

TARGETS: dict[str, Target] = {
    "metal": MetalTarget(),
    "cpu": CpuTarget(),
}
"""By the names that users give."""
