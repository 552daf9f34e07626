"""Writes to the card's memory from many threads, through a few pieces of pinned memory.

What is written is copied once by the CPU, while what was written before is on its way. MLX would fill memory of the
whole array first, page by page, and only then have it copied.
"""

import ctypes
import threading
import weakref
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.driver import call, in_context
from mlxr.runtime.hosts.cuda.handover.pinned_memory import PinnedMemory
from mlxr.runtime.hosts.cuda.launch_graph import Event

_PIECES, _PIECE_BYTES = 24, 2 << 20
"""Enough for 16 threads (see load_weights.py), some of whose pieces are on their way."""
_NON_BLOCKING, _RELAXED = 1, 2  # CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED
_IS_MANAGED = 8  # CU_POINTER_ATTRIBUTE_IS_MANAGED


class _Piece(NamedTuple):
    memory: PinnedMemory
    copied: Event
    content: npt.NDArray[np.uint8]


class CardWriter:
    """Writes to memory of the card."""

    def __init__(self) -> None:
        """Makes a stream, and allocates pieces.

        Raises:
            HostError: the driver refuses.
        """
        self._stream, self._pieces = ctypes.c_void_p(), SimpleQueue[_Piece]()
        self._context, self._of_thread = ctypes.c_void_p(), threading.local()
        with in_context():
            call("cuCtxGetCurrent", ctypes.byref(self._context))  # MLX keeps it
            call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        weakref.finalize(self, _destroy_stream, self._stream).atexit = False
        for _ in range(_PIECES):
            copied = Event()
            memory = PinnedMemory(_PIECE_BYTES, [copied.wait])
            content = np.ctypeslib.as_array((ctypes.c_uint8 * _PIECE_BYTES).from_address(memory.address))
            self._pieces.put(_Piece(memory, copied, content))

    def write(self, address: int, numbers: npt.NDArray[Any]) -> None:
        """Has contiguous numbers copied to an address, which are read before this returns.

        Several threads may call it; each then has the card's context.

        Raises:
            HostError: the driver refuses.
        """
        content = numbers.reshape(-1).view(np.uint8)
        if not hasattr(self._of_thread, "is_ready"):  # one thread writes many times
            call("cuCtxSetCurrent", self._context)
            call("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(_RELAXED)))
            self._of_thread.is_ready = True
        for first in range(0, len(content), _PIECE_BYTES):
            part, piece = content[first : first + _PIECE_BYTES], self._pieces.get()
            try:
                piece.copied.wait()
                piece.content[: len(part)] = part
                places = ctypes.c_uint64(address + first), ctypes.c_void_p(piece.memory.address)
                call("cuMemcpyHtoDAsync_v2", *places, ctypes.c_size_t(len(part)), self._stream)
                piece.copied.record(self._stream.value or 0)
            finally:
                self._pieces.put(piece)

    def wait(self) -> None:
        """Waits until all that was written is there.

        Raises:
            HostError: the driver says that something has failed.
        """
        with in_context():
            call("cuStreamSynchronize", self._stream)


def card_writer() -> CardWriter | None:
    """A writer; None where there is no driver that gives one, so that MLX must do it."""
    try:
        return CardWriter()
    except HostError:
        return None


def _destroy_stream(stream: ctypes.c_void_p) -> None:
    with suppress(HostError), in_context():
        call("cuStreamDestroy_v2", stream)


def is_on_card(address: int) -> bool:
    """Whether memory is the card's own, and is not moved to where it is looked at.

    Raises:
        HostError: the driver knows nothing of it.
    """
    managed = ctypes.c_int()
    with in_context():
        call("cuPointerGetAttribute", ctypes.byref(managed), _IS_MANAGED, ctypes.c_uint64(address))
    return not managed.value
