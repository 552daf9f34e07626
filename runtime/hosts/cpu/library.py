"""Calls an artifact's library through ctypes. The structures are those of templates/cpu/common.h.

During a call, other Python threads run. The program's own threads never touch Python.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.exchange import Floats

_CLOSE_WAIT_S = 30.0


class CBlocks(ctypes.Structure):
    """`mlxr_blocks`."""

    _fields_ = (("slots", ctypes.c_void_p), ("tables", ctypes.c_void_p), ("columns", ctypes.c_int64))


class CBatch(ctypes.Structure):
    """`mlxr_batch`."""

    _fields_ = (
        ("program", ctypes.c_int32),
        ("tokens", ctypes.c_int32),
        ("seqs", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("token_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("token_types", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("groups", ctypes.POINTER(CBlocks)),
        ("state_table", ctypes.c_void_p),
        ("state_columns", ctypes.c_int64),
        ("logit_rows", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("links", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("adapter_ids", ctypes.c_void_p),  # these two are `mlxr_adapted_batch`'s, which programs with adapters take
        ("adapter_scales", ctypes.c_void_p),
    )


class Library:
    """The functions of a loaded library, by the names that model.c gives them."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        """Declares the types of the functions.

        Raises:
            HostError: a function is missing.
        """
        pointer, number = ctypes.c_void_p, ctypes.c_int32
        self.abi = _function(loaded, "mlxr_abi", number)
        self.open = _function(loaded, "mlxr_open", pointer, pointer, pointer, number)
        self.step = _function(loaded, "mlxr_step", None, pointer, pointer)
        self.chain = _function(loaded, "mlxr_chain", ctypes.c_int64, pointer, pointer, number, number, pointer, pointer)
        self.copy_blocks = _function(loaded, "mlxr_copy_blocks", None, pointer, number, pointer, number)
        self.pack = _function(loaded, "mlxr_pack", number, number, pointer, pointer, number, number)
        self.launches = _function(loaded, "mlxr_launches", pointer, pointer)
        self.close = _function(loaded, "mlxr_close", None, pointer)
        self.read_ahead: Callable[..., Any] | None = None
        if hasattr(loaded, "mlxr_read_ahead"):  # it has experts
            self.read_ahead = _function(loaded, "mlxr_read_ahead", ctypes.c_uint64, pointer, number)
        self.serve: Callable[..., Any] | None = None
        if hasattr(loaded, "mlxr_serve"):  # a card gives it rows
            self.serve = _function(loaded, "mlxr_serve", number, pointer, pointer)
        self.times: Callable[..., Any] | None = None
        if hasattr(loaded, "mlxr_times"):  # it was compiled with a clock
            self.times = _function(loaded, "mlxr_times", pointer, number)
        self.lend_activations: Callable[..., Any] | None = None
        if hasattr(loaded, "mlxr_lend_activations"):  # of one of several ranks
            self.lend_activations = _function(loaded, "mlxr_lend_activations", None, pointer, pointer)
        self.all_sum: Callable[..., Any] | None = None
        if hasattr(loaded, "mlxr_all_sum"):  # of a rank whose steps may have two batches
            self.all_sum = _function(loaded, "mlxr_all_sum", None, pointer, pointer, pointer, ctypes.c_uint64)


def _function(loaded: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    try:
        function = getattr(loaded, name)
    except AttributeError as error:
        raise HostError(f"cpu: the library has no function {name}; compile the spec again") from error
    function.restype, function.argtypes = result, arguments
    typed: Callable[..., Any] = function
    return typed


class OpenProgram:
    """A library's program with its threads, which end with `close`, or when this object is garbage-collected.

    Several Python threads may call it; they take turns. A process that was forked from the one that opened the program
    does not have its threads, and cannot use it.
    """

    def __init__(
        self, library: Library, tensors: Sequence[int], stores: Sequence[int], threads: int, keep: object
    ) -> None:
        """Starts the threads.

        Args:
            library: the program.
            tensors: the address of each tensor.
            stores: the address of each store, in the plan's order.
            threads: how many threads work, including the caller's.
            keep: the owners of that memory, which stay referenced until the threads have ended.

        Raises:
            HostError: there is not enough memory, no further thread can start, or Linux refuses the AMX registers.
        """
        pointers = (ctypes.c_void_p * max(1, len(tensors)))(*tensors)
        handle = library.open(pointers, (ctypes.c_void_p * len(stores))(*stores), threads)
        if not handle:
            reason = os.strerror(ctypes.get_errno())
            raise HostError(f"cpu: cannot start {threads} threads with their memory: {reason}; give fewer --threads")
        self._step, self._chain, self._copy = library.step, library.chain, library.copy_blocks
        self._read_ahead, self._serve = library.read_ahead, library.serve
        self._lend, self._all_sum = library.lend_activations, library.all_sum
        self._launches = ctypes.cast(library.launches(handle), ctypes.POINTER(ctypes.c_uint64))
        self._handle, self._pid, self._lock = handle, os.getpid(), threading.Lock()
        self._finish = weakref.finalize(self, _close, library, handle, self._pid, self._lock, keep)

    def step(self, batch: CBatch) -> None:
        """Runs one batch to its end.

        Raises:
            HostError: the program is closed, or this process was forked from the one that opened it.
        """
        self._check()
        with self._lock:
            self._check()
            self._step(self._handle, ctypes.byref(batch))

    def chain(
        self,
        batches: Sequence[CBatch],
        width: int,
        ids: npt.NDArray[np.int32] | None,
        found: npt.NDArray[np.int32],
    ) -> float:
        """Runs batches in turn, to the end of the last one.

        Args:
            batches: the token ids of those after the first are in `found`.
            width: columns of the logits that count.
            ids: of each of them the token; None: it is the column.
            found: [rows of all batches], becomes the likeliest token of each.

        Returns:
            The seconds that the batches after the first took.

        Raises:
            HostError: as `step`.
        """
        pointers = (ctypes.c_void_p * len(batches))(*map(ctypes.addressof, batches))
        table = None if ids is None else ids.ctypes.data
        self._check()
        with self._lock:
            self._check()
            return 1e-9 * float(self._chain(self._handle, pointers, len(batches), width, table, found.ctypes.data))

    def serve(self, links: int) -> int:
        """Waits until a card begins a step, and runs it, for a program that has its experts; and those soon after.

        Args:
            links: the address of `mlxr_links`.

        Returns:
            How many steps there were; 0: nobody waits any more.

        Raises:
            HostError: as `step`.
        """
        assert self._serve is not None, "a card gives the program rows"
        self._check()
        with self._lock:
            self._check()
            return int(self._serve(self._handle, links))

    def copy_blocks(self, group: int, pairs: npt.NDArray[np.int32]) -> None:
        """Copies blocks of a group. `pairs`: [copies, 2] source and target.

        Raises:
            HostError: as `step`.
        """
        self._check()
        with self._lock:
            self._check()
            self._copy(self._handle, group, pairs.ctypes.data, len(pairs))

    def read_ahead(self, *, on: bool) -> int:
        """Whether, from the next step on, the system is asked to read the weights of experts that come next.

        Returns:
            How many bytes were asked for so far; 0 of a model without experts.

        Raises:
            HostError: as `step`.
        """
        self._check()
        with self._lock:
            self._check()
            return 0 if self._read_ahead is None else int(self._read_ahead(self._handle, on))

    def lend_activations(self, address: int) -> None:
        """Has the program of one of several ranks put its activations into memory of the caller, before its first step.

        Args:
            address: of that memory, which stays until the program is closed.
        """
        assert self._lend is not None, "the program is that of a rank"
        self._lend(self._handle, address)

    def all_sum(self, links: int, x: Floats, out: Floats) -> None:
        """Sums rows over sockets, outside a step; all ranks of the stage do at the same time.

        Args:
            links: the address of `mlxr_links`.
            x: this rank's addend.
            out: like x.
        """
        assert self._all_sum is not None, "the program is that of a rank whose steps may have two batches"
        self._all_sum(links, x.ctypes.data, out.ctypes.data, x.size)

    def launches(self, count: int) -> list[int] | None:
        """How often each of the first `count` kernels was launched; None once the program is closed."""
        return self._launches[:count] if self._finish.alive else None

    def close(self) -> None:
        """Ends the threads, after a step that is running."""
        self._finish()

    def _check(self) -> None:
        if os.getpid() != self._pid:  # checked before the lock, which a thread of the other process may hold
            raise HostError(
                "this process was forked from the one that loaded the model, and has none of its threads; load the "
                "model in this process"
            )
        if not self._finish.alive:
            raise HostError("the model is closed; load it again")


def _close(library: Library, handle: int, pid: int, lock: threading.Lock, keep: object) -> None:
    """Frees the program. When Python exits, another thread may be running a step; it gets time to finish."""
    if os.getpid() == pid and lock.acquire(timeout=_CLOSE_WAIT_S):
        library.close(handle)
        lock.release()
    del keep
