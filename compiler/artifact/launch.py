"""A launch: what it calls, the numbers that its grid depends on, and the conditions under which it runs."""

from collections.abc import Mapping
from typing import Annotated, get_args

from pydantic import Field

from mlxr.compiler.artifact.library_call import LibraryCall
from mlxr.compiler.ir.tensor import BatchDim
from mlxr.compiler.spec.record import Record

BATCH_DIMS: Mapping[str, BatchDim] = {dim: dim for dim in get_args(BatchDim)}
"""Each dim of a batch by its name in shapes."""


class Extent(Record):
    """Threadgroups along one axis: `times` x ceil(dim / per) + `plus`, or `times` alone."""

    times: int = 1
    dim: BatchDim | None = None
    per: int = 1
    plus: int = 0

    def value(self, dims: Mapping[BatchDim, int]) -> int:
        """The number of threadgroups for a batch."""
        return self.times if self.dim is None else self.times * -(-dims[self.dim] // self.per) + self.plus

    def __str__(self) -> str:
        if self.dim is None:
            return str(self.times)
        text = self.dim if self.per == 1 else f"ceil({self.dim}/{self.per})"
        text = text if self.times == 1 else f"{self.times}*{text}"
        return f"{text}+{self.plus}" if self.plus else text


class Condition(Record):
    """Holds if minimum <= dim <= maximum and `also` holds."""

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
        """This condition and those that must hold with it, one range each."""
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
"""The condition of launches that only logits need: the batch asks for some rows."""


class KernelCall(Record):
    """The launch of a generated kernel.

    Attributes:
        kernel: the kernel's name.
        threadgroups: the grid; a single threadgroup for kernels that all threads of a host run together.
    """

    kernel: str
    threadgroups: tuple[Extent, Extent, Extent] = (ONE, ONE, ONE)

    def grid(self, dims: Mapping[BatchDim, int]) -> tuple[int, int, int]:
        """The number of threadgroups along each axis for a batch; 0 if there is nothing to do."""
        x, y, z = self.threadgroups
        return x.value(dims), y.value(dims), z.value(dims)


class Launch(Record):
    """A call of a kernel, or of a function of MLX.

    Hosts whose kernels MLX launches also have MLX's functions (`library`), which are faster for large matmuls and for
    attention of long chunks. There a library call replaces the kernels that write the same buffer, and other kernels
    prepare its inputs. Hosts without MLX's functions run only kernels.

    Attributes:
        op: the graph's op that it computes, wholly or in part; the first op, if it works for several.
        layer: the op's layer; None outside the layers.
        body: the kernel or function that it calls.
        inputs: buffers for the input ports of the kernel or function, in order.
        outputs: buffers for the kernel's output ports, in order, or for the function's result.
        when: the launch runs only if this holds.
        yields: on hosts with MLX's functions, the launch does not run if this holds: a library call replaces it.
        needs_library: the launch runs only on hosts with MLX's functions. It is a library call, or a kernel that
            prepares the inputs of one.
    """

    op: str
    layer: int | None = None
    body: Annotated[KernelCall | LibraryCall, Field(union_mode="left_to_right")]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    when: Condition | None = None
    yields: Condition | None = None
    needs_library: bool = False

    def applies(self, dims: Mapping[BatchDim, int], *, library: bool) -> bool:
        """Whether its conditions hold.

        Args:
            dims: the batch's dims, at least those that its conditions name.
            library: whether the host has MLX's functions.
        """
        if self.when is not None and not self.when.holds(dims):
            return False
        return not (self.yields is not None and self.yields.holds(dims)) if library else not self.needs_library

    def runs(self, dims: Mapping[BatchDim, int], *, library: bool) -> bool:
        """Whether it runs for a batch: its conditions hold (see `applies`), and it has something to do."""
        if not self.applies(dims, library=library):
            return False
        return not isinstance(self.body, KernelCall) or 0 not in self.body.grid(dims)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The parts of all its conditions; the set of launches that run changes only at their limits."""
        return tuple(part for condition in (self.when, self.yields) if condition for part in condition.parts)

    @property
    def kernel_call(self) -> KernelCall:
        """The body of a launch that is not a library call."""
        assert isinstance(self.body, KernelCall), f"the launch for {self.op} calls MLX's {self.body.function}"
        return self.body

    @property
    def kernel(self) -> str:
        """The kernel's name, for a launch that is not a library call."""
        return self.kernel_call.kernel

    @property
    def threadgroups(self) -> tuple[Extent, Extent, Extent]:
        """The grid, for a launch that is not a library call."""
        return self.kernel_call.threadgroups
