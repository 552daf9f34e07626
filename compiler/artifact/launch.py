"""A launch, the numbers that its grid depends on, and the conditions under which it runs."""

from collections.abc import Mapping
from typing import Literal

from mlxr.compiler.spec.record import Record

BatchDim = Literal["tokens", "seqs", "rows", "tiles", "copies", "context"]


class Extent(Record):
    """Threadgroups along one axis: `times` x ceil(dim / per), or `times` alone."""

    times: int = 1
    dim: BatchDim | None = None
    per: int = 1

    def value(self, dims: Mapping[BatchDim, int]) -> int:
        """The number of threadgroups for a batch."""
        return self.times if self.dim is None else self.times * -(-dims[self.dim] // self.per)

    def __str__(self) -> str:
        if self.dim is None:
            return str(self.times)
        text = self.dim if self.per == 1 else f"ceil({self.dim}/{self.per})"
        return text if self.times == 1 else f"{self.times}*{text}"


class Condition(Record):
    """Holds when minimum <= dim <= maximum, and `also` does."""

    dim: BatchDim
    minimum: int = 0
    maximum: int | None = None
    also: "Condition | None" = None

    def holds(self, dims: Mapping[BatchDim, int]) -> bool:
        """Whether it holds for a batch."""
        here = self.minimum <= dims[self.dim] and (self.maximum is None or dims[self.dim] <= self.maximum)
        return here and (self.also is None or self.also.holds(dims))

    @property
    def parts(self) -> "tuple[Condition, ...]":
        """It, and what must hold also."""
        return (self, *(self.also.parts if self.also else ()))

    def __str__(self) -> str:
        return " and ".join(map(Condition._range, self.parts))

    def _range(self) -> str:
        if self.maximum is None:
            return f"{self.dim} >= {self.minimum}"
        if self.maximum == self.minimum:
            return f"{self.dim} == {self.minimum}"
        return f"{self.dim} <= {self.maximum}" if not self.minimum else f"{self.minimum}..{self.maximum} {self.dim}"


ONE = Extent()
ROWS_WANTED = Condition(dim="rows", minimum=1)
"""Of launches that only logits need: the batch asks for some."""


class Launch(Record):
    """One launch of a kernel.

    Attributes:
        op: the graph's op that it computes, wholly or in part; of one that feeds several ops the first of them.
        layer: the layer that the op belongs to; None outside of the layers.
        inputs, outputs: buffers for the kernel's ports, in order.
        threadgroups: the grid; one threadgroup of kernels that all threads of a host share.
        when: runs only if it holds.
        mlx: when all of these hold, hosts whose kernels MLX launches run the op as MLX ops instead (large matmuls and
            attention of long chunks, where MLX's matrix kernels win); empty: always the kernel.
        mlx_inputs: what these ops take, beyond the graph op's inputs or instead of them, by port.
        feeds_mlx: makes such inputs, and runs only when `mlx` holds.
    """

    op: str
    kernel: str
    layer: int | None = None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    threadgroups: tuple[Extent, Extent, Extent] = (ONE, ONE, ONE)
    when: Condition | None = None
    mlx: tuple[Condition, ...] = ()
    mlx_inputs: tuple[tuple[str, str], ...] = ()
    feeds_mlx: bool = False

    def runs_as_mlx(self, dims: Mapping[BatchDim, int]) -> bool:
        """Whether MLX ops take its place, on hosts that have them; of one that feeds them, whether it runs."""
        return bool(self.mlx) and all(condition.holds(dims) for condition in self.mlx)
