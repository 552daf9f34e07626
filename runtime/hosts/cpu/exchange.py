"""Collectives of the C program: what it does not do by itself, it asks for from the thread that called the step."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from mlxr.compiler.artifact import COLLECTIVES, RankPlan
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.collectives import BlockingCollectives, Floats
from mlxr.runtime.hosts.cpu.program_links import BOARD_BYTES, CALL, ProgramLinks
from mlxr.runtime.hosts.gather_result import gather_result


class Exchange:
    """What one program exchanges.

    Attributes:
        links: for the program.
        tops: of the step that runs; see `Batch.tops`.
    """

    def __init__(self, collectives: BlockingCollectives, rank: RankPlan, activation_bytes: int) -> None:
        """Connects the program with those of the other ranks.

        Args:
            collectives: this rank's.
            rank: this one.
            activation_bytes: memory of its activations.
        """
        self._collectives, self._rank, self.tops = collectives, rank, 0
        self._failure: BaseException | None = None
        self._functions: Sequence[Callable[[int | None, int, int, int], None]] = [
            getattr(self, f"_{kind}") for kind in COLLECTIVES
        ]
        wires = collectives.wires(BOARD_BYTES + activation_bytes)
        self.links = ProgramLinks(CALL(self._call), rank, wires, activation_bytes)

    def check(self) -> None:
        """Raises what a collective of the last step raised.

        Raises:
            HostError: it failed.
        """
        self.links.check()
        if (failure := self._failure) is None:
            return
        self._failure = None
        if isinstance(failure, HostError):
            raise failure
        raise HostError(f"the ranks cannot exchange their results: {failure}") from failure

    def _call(self, kind: int, x: int | None, out: int | None, rows: int, columns: int) -> None:
        if self._failure is not None:
            return  # the step has failed, and its other collectives would wait for ranks that have left it
        try:
            self._functions[kind](x, out or 0, rows, columns)
        except BaseException as error:  # C cannot pass it on
            self._failure = error

    def _all_sum(self, x: int | None, out: int, rows: int, columns: int) -> None:
        assert x is not None, "a sum has an addend"
        self._collectives.all_sum(_floats(x, rows, columns), _floats(out, rows, columns))

    def _send(self, x: int | None, out: int, rows: int, columns: int) -> None:
        assert x is not None, "something is sent"
        self._collectives.send(_floats(x, rows, columns))

    def _receive(self, x: int | None, out: int, rows: int, columns: int) -> None:
        self._collectives.receive(_floats(out, rows, columns))

    def _gather(self, x: int | None, out: int, rows: int, columns: int) -> None:
        own = None if x is None else _floats(x, rows, columns)
        gather_result(self._collectives, self._rank, own, _floats(out, rows, self._rank.result_bounds[-1]), self.tops)


def _floats(address: int, rows: int, columns: int) -> Floats:
    """The program's memory as an array."""
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, (rows, columns))
