"""Where C kernels find what they read of their inputs: some neighbouring columns of wider values."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.targets.cpu.lowering import CpuLowering


@dataclass(frozen=True)
class Columns:
    """Where an input of tokens has what is read of it: its columns, and the first that is read."""

    width: int
    first: int


def columns_at(lowering: CpuLowering, op: Op, firsts: Mapping[str, int]) -> dict[str, Columns]:
    """By port: the columns of an op's inputs that begin with these; without ports that nothing is bound to."""
    return {port: Columns(lowering.width(op, port), first) for port, first in firsts.items() if port in op.inputs}
