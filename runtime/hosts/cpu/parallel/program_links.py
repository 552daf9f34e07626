"""What the C program knows of the other processes; the structure is that of templates/cpu/links.h."""

import ctypes
import os

import numpy as np

from mlxr.compiler.errors import RankError
from mlxr.runtime.hosts.exchange import BlockingExchange, Wires

CALL = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)
"""The type of `mlxr_links.call`."""
BOARD_BYTES = 4096
"""`MLXR_BOARD_BYTES`: of a rank's shared memory, before its activations."""
_SHORT_BYTES = 32768
PROBE_BYTES = 1 << 21
"""At least so much scratch has every rank that sends its addends, whatever its share."""


class _CLinks(ctypes.Structure):
    """`mlxr_links`."""

    _fields_ = (
        ("call", CALL),
        ("sockets", ctypes.c_void_p),
        ("memory", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("tensor", ctypes.c_int32),
        ("tensor_rank", ctypes.c_int32),
        ("previous", ctypes.c_int32),
        ("next", ctypes.c_int32),
        ("connected", ctypes.c_int32),
        ("lost", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("sums", ctypes.c_uint32),
        ("under_way", ctypes.c_void_p),
        ("beside", ctypes.c_uint64),
    )


class ProgramLinks:
    """`mlxr_links` with all that it points to.

    Attributes:
        address: of the structure.
        memory: of this rank's activations, if the ranks of its stage share their memory.
        sends_sums: whether the program sums over sockets, by itself.
    """

    def __init__(self, call: object, others: BlockingExchange, wires: Wires | None, activation_bytes: int) -> None:
        """Fills the structure.

        Args:
            call: does what the program does not; a `CALL`.
            others: what the host was given.
            wires: what the program may use by itself.
            activation_bytes: memory of its activations.
        """
        self._call = call  # kept alive: C has only its address
        self._others, self._wires, self.memory = others, wires, 0
        self.sends_sums = others.size > 1 and wires is not None and not wires.memory
        self._c = _CLinks(call=call, tensor=others.size, tensor_rank=others.index, lost=-1)
        if wires is not None:
            self._sockets = np.array(wires.sockets, np.int32)
            self._memory = np.array(wires.memory, np.uint64)
            self._c.connected = 1
            self._c.previous, self._c.next = wires.previous, wires.next
            self._c.sockets = self._sockets.ctypes.data
            if wires.memory:
                self._c.memory = self._memory.ctypes.data
                self.memory = wires.memory[others.index] + BOARD_BYTES
            else:
                self._scratch = np.empty(max(activation_bytes, others.size * _SHORT_BYTES, PROBE_BYTES), np.uint8)
                self._c.scratch = self._scratch.ctypes.data
        self.address = ctypes.addressof(self._c)

    @property
    def bytes_beside_compute(self) -> int:
        """Of sums that the program has sent and received while it computed."""
        return int(self._c.beside)

    def check(self) -> None:
        """Does nothing while no rank is lost.

        Raises:
            HostError: a rank was lost in the middle of a step.
        """
        if (lost := self._c.lost) < 0:
            return
        reason = os.strerror(self._c.error) if self._c.error else "it has ended the connection"
        assert self._wires is not None, "the program looks at connections"
        raise RankError(self._others.name, f"lost rank {self._wires.names[lost]}: {reason}")
