"""What a C program exchanges: what it does not do by itself, it asks for from the thread that called the step."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from mlxr.compiler.artifact import COLLECTIVES
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cpu.parallel.program_links import BOARD_BYTES, CALL, ProgramLinks
from mlxr.runtime.hosts.exchange import BlockingExchange, Floats


class ProgramExchange:
    """What one program exchanges.

    Attributes:
        links: for the program.
    """

    def __init__(self, others: BlockingExchange, activation_bytes: int) -> None:
        """Connects the program with those of the others.

        Args:
            others: what the host was given.
            activation_bytes: memory of its activations.
        """
        self._others, self._tops = others, 0
        self._failure: BaseException | None = None
        self._functions: Sequence[Callable[[int | None, int, int, int], None]] = [
            getattr(self, f"_{kind}") for kind in COLLECTIVES
        ]
        wires = others.wires(BOARD_BYTES + activation_bytes)
        self.links = ProgramLinks(CALL(self._call), others, wires, activation_bytes)

    def run(self, step: Callable[[], None], tops: int) -> None:
        """Runs a step of the program.

        Args:
            step: calls it.
            tops: see `Batch.tops`.

        Raises:
            HostError: an exchange failed.
        """
        self._tops = tops
        step()
        self._check()

    def _check(self) -> None:
        """Raises what an exchange of the last step raised."""
        self.links.check()
        if (failure := self._failure) is None:
            return
        self._failure = None
        if isinstance(failure, HostError):
            raise failure
        raise HostError(f"the ranks cannot exchange their results: {failure}") from failure

    def _call(self, kind: int, x: int | None, out: int | None, rows: int, columns: int) -> None:
        if self._failure is not None:
            return  # the step has failed, and its other exchanges would wait for those that have left it
        try:
            self._functions[kind](x, out or 0, rows, columns)
        except BaseException as error:  # C cannot pass it on
            self._failure = error

    def _all_sum(self, x: int | None, out: int, rows: int, columns: int) -> None:
        assert x is not None, "a sum has an addend"
        self._others.all_sum(_floats(x, rows, columns), _floats(out, rows, columns))

    def _send(self, x: int | None, out: int, rows: int, columns: int) -> None:
        assert x is not None, "something is sent"
        self._others.send(_floats(x, rows, columns))

    def _receive(self, x: int | None, out: int, rows: int, columns: int) -> None:
        self._others.receive(_floats(out, rows, columns))

    def _gather(self, x: int | None, out: int, rows: int, columns: int) -> None:
        own = None if x is None else _floats(x, rows, columns)
        self._others.gather_result(own, _floats(out, rows, self._others.result_columns), self._tops)


def _floats(address: int, rows: int, columns: int) -> Floats:
    """The program's memory as an array."""
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, (rows, columns))
