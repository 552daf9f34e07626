"""What a recorded step calls, before operands have addresses."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import mlx.core as mx

from mlxr.runtime.hosts.cuda.launch_graph import FUNCTIONS, GraphLaunch
from mlxr.runtime.hosts.cuda.matrix_library import Product, ProductLaunch

NORMED, SUMS, WORKSPACE = "normed x", "sums", "workspace"
"""Operands of products beside buffers: what they multiply, what they give, and what they work in."""

Grid = tuple[int, int, int]
Operand = str | mx.array | int
"""A buffer by its name, an array that stays where it is, or a number that is given as it is."""


class Call(NamedTuple):
    """A launch, before its operands have addresses."""

    name: str
    image: bytes
    grid: Grid
    threads: int
    operands: Sequence[Operand]
    pool: int = 0
    waits: bool = False
    cluster: int = 1

    def launch(self, addresses: Mapping[str, int]) -> GraphLaunch:
        """The launch, given the address of each buffer; `waits` is as there, `cluster` as `Functions.of` has it."""
        function = FUNCTIONS.of(self.name, self.image, self.pool, self.cluster)
        operands = _found(self.operands, addresses)
        return GraphLaunch(function, self.grid, self.threads, operands, self.pool, self.waits)


class ProductCall(NamedTuple):
    """A matrix product; operands are x, weight, what is added and the bias (0: none), the result, and WORKSPACE."""

    product: Product
    operands: Sequence[Operand]

    def launch(self, addresses: Mapping[str, int]) -> ProductLaunch:
        """The same, given the address of each buffer."""
        return ProductLaunch(self.product, *_found(self.operands, addresses))


def arrays_of(calls: Sequence[Call | ProductCall], fixed: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The arrays among the operands, each by a name: those that stay the same, and weights and stores."""
    found: dict[str, mx.array] = {}
    for operand in (operand for call in calls for operand in call.operands):
        if isinstance(operand, mx.array):
            found[_name(operand)] = operand
        elif isinstance(operand, str) and operand in fixed:
            found[operand] = fixed[operand]
    return found


def _found(operands: Sequence[Operand], addresses: Mapping[str, int]) -> list[int]:
    return [operand if isinstance(operand, int) else addresses[_name(operand)] for operand in operands]


def _name(operand: str | mx.array) -> str:
    return operand if isinstance(operand, str) else f"array {id(operand)}"
