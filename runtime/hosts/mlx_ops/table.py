"""Which function computes an op kind, and how a single op is run.

Modules of this folder register the functions of their kinds with `evaluates`. A new kind is a new function in one of
them, or in a new module: all are imported, and no list names them.
"""

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import TypeVar

import mlx.core as mx

from mlxr.compiler.ir.op_kind import OpKind
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, OpFunction, Outputs

Kind = TypeVar("Kind", bound=OpKind)
TypedFunction = Callable[[Inputs, Kind, ArenaLayer | None], Outputs]

_FUNCTIONS: dict[type[OpKind], OpFunction] = {}


def evaluates(kind: type[Kind]) -> Callable[[TypedFunction[Kind]], TypedFunction[Kind]]:
    """Registers the function of an op kind."""

    def register(function: TypedFunction[Kind]) -> TypedFunction[Kind]:
        assert kind not in _FUNCTIONS, f"two functions compute {kind.__name__}"
        _FUNCTIONS[kind] = function
        return function

    return register


@functools.cache
def op_functions() -> dict[type[OpKind], OpFunction]:
    """The function of every op kind."""
    package = __name__.rpartition(".")[0]
    for info in pkgutil.iter_modules(sys.modules[package].__path__, f"{package}."):
        importlib.import_module(info.name)
    return _FUNCTIONS


def evaluate(attrs: OpKind, inputs: Inputs, arena: ArenaLayer | None = None) -> Outputs:
    """Runs one op.

    Args:
        attrs: the op's kind and attributes.
        inputs: arrays by port; batch metadata in its exact size.
        arena: for ops that access it; they write it in place, after the accesses that its token stands for.

    Returns:
        Arrays by port. An op that accesses the arena has done so; the rest is lazy.
    """
    if arena is not None:
        mx.eval(arena.arena.token)
    return op_functions()[type(attrs)](inputs, attrs, arena)
