"""The base of the C kernels that compute the gated delta rule."""

from dataclasses import dataclass

from mlxr.compiler.ir.ops.gated_delta import DeltaHeads
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHeader, CpuHelper, CpuKernel

DELTA = CpuHeader("delta.h")
"""The rule, on some columns of a state."""
MOST_COLUMNS = 64
"""MLXR_DELTA_COLUMNS of the widest vectors."""


@dataclass(frozen=True)
class CpuDeltaKernel(CpuKernel):
    """Base of the kernels that compute the rule.

    Attributes:
        store: the number of the states in the program's list of stores.
        num_layers: layers that have rows of them.
        heads: the heads, and where their numbers are.
    """

    store: int
    num_layers: int
    heads: DeltaHeads

    @property
    def key_of_head(self) -> str:
        """The head of keys that `head` has, in C."""
        if self.heads.tiled:
            return f"(head % {self.heads.num_key_heads})"
        return "head" if self.heads.ratio == 1 else f"(head / {self.heads.ratio})"

    @property
    def slot(self) -> int:
        """Numbers of a slot: all layers' states."""
        return self.num_layers * self.heads.state_size

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """The rule."""
        return (DELTA,)
