"""Steps that MLX has compiled: building a graph in Python takes longer than a small model's step.

A trace is made for one set of shapes and conditions of launches; weights and arena are constants of it.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx

from mlxr.runtime.hosts.mlx.host import MlxHost

MOST = 128
"""Traces that are kept of one kind of step."""

Key = tuple[str | int | bool, ...]
"""What a trace depends on."""
_Traces = TypeVar("_Traces")


class Trace(NamedTuple):
    """A step or a part of one, compiled by MLX, and the launches in it."""

    run: Callable[..., Any]
    launches: Counter[str]


def traced(host: MlxHost, run: Callable[..., Any]) -> Trace:
    """A function that launches kernels of a host, compiled by MLX.

    Its launches are counted when it is traced; the caller adds them to the host's each time it runs. Where what is
    exchanged cannot be traced, the function stays as it is, and the host counts.
    """
    exchange = host.launcher.exchange
    if exchange is not None and not exchange.traceable:
        return untraced(run)
    launches: Counter[str] = Counter()

    def counted(*arrays: Any) -> Any:
        own, host.launches = host.launches, launches
        launches.clear()
        try:
            return run(*arrays)
        finally:
            host.launches = own

    compiled: Any = mx.compile(counted)
    return Trace(compiled, launches)


def untraced(run: Callable[..., Any]) -> Trace:
    """A function that launches each time it runs."""
    return Trace(run, Counter())


class RecentTraces(OrderedDict[Key, _Traces]):
    """The traces of the sizes of steps that were used last.

    Attributes:
        most: how many; None: `MOST`.
    """

    most: int | None = None

    def keep(self, key: Key, traces: _Traces) -> None:
        """Keeps traces, and drops those that have not been used for the longest time."""
        self[key] = traces
        self.move_to_end(key)
        if len(self) > (MOST if self.most is None else self.most):
            self.popitem(last=False)
