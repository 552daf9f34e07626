"""What a card and the CPU, which has some layers' experts, do in turns: the memory that both see, and who waits when.

The card writes what the experts read, and then a number; the CPU computes, writes the sum, and the same number. Neither
writes again before the other has answered, so each part of the memory exists once. The C program
(templates/cpu/handover.h) has one end. `Handover` is the other one, for hosts whose launches wait; on a card, kernels
are (runtime/hosts/cuda/handover/).
"""

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import PHASES, HandoverCall, HandoverLayout, Phase, PhaseName, Plan
from mlxr.compiler.errors import HostError

BLOCKS = 16
"""Blocks of the card that give, each with a number of its own."""
STEP_AT, ANSWERED_AT, STOP_AT = 64, 128, 256
"""Where in the memory are: what is given of which step, the last answer's number, and whether to stop."""
_ALIGNMENT = 256
_ANSWER_SECONDS = 120.0
"""After which a launch no longer waits for the CPU."""

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


class CLinks(ctypes.Structure):
    """`mlxr_links` of a program that has experts."""

    _fields_ = (
        ("turns", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("experts", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("sum", ctypes.c_void_p),
        ("number", ctypes.c_uint32),
        ("place", ctypes.c_int32),
        ("goes_on", ctypes.c_int32),
        ("rests", ctypes.c_int32),
    )

    @classmethod
    def to(cls, address: int, layout: HandoverLayout) -> "CLinks":
        """Those to memory at an address."""
        places = (layout.x_at, layout.experts_at, layout.weights_at, layout.sum_at)
        return cls(address, *(address + place for place in places), 0, 0, 0, 0)


class SeenMemory(Protocol):
    """Memory that a card and the CPU see.

    Attributes:
        address: for the CPU.
    """

    address: int

    def free(self) -> None:
        """Frees it; nobody looks at it any more."""


class ExpertsBeside(Protocol):
    """The CPU's part of a model, as the host of the card's part sees it."""

    def attach(self, memory: SeenMemory, layout: HandoverLayout) -> None:
        """Takes the memory that both see, which is zero, before the first step; frees it when the model is closed."""

    def begin(self) -> None:
        """Says that a step will give something; the CPU then looks for it until it comes."""

    def reset(self, clear: Callable[[], object]) -> None:
        """Ends what it computes and waits for, has the memory's numbers cleared, and begins anew."""


class LazyHandover(Protocol):
    """The card's end, for a host whose steps are lazy MLX graphs."""

    def begin(self) -> None:
        """Begins a step; before it is launched."""

    def follow(self, token: mx.array) -> None:
        """Notes what is there when the step has ended: the arena's token after it, lazy."""

    def give(self, call: HandoverCall, phase: PhaseName, inputs: Mapping[str, mx.array], tokens: int) -> mx.array:
        """Gives the CPU what the experts read; what it makes is bound by what takes their sum.

        Args:
            call: the launch.
            phase: of the step.
            inputs: by the call's ports; arrays may have more elements than their ports.
            tokens: of the step.
        """

    def take(self, call: HandoverCall, inputs: Mapping[str, mx.array], tokens: int) -> mx.array:
        """The sum, [tokens, width], or at least 8 elements; added to the residual if there is one."""

    def recover(self) -> None:
        """Begins anew after a step that has failed."""

    def close(self) -> None:
        """Frees what the card alone has of it; no step follows."""


class _OwnMemory:
    """Zeros of this process, `numbers`."""

    def __init__(self, size_bytes: int) -> None:
        whole = np.zeros(size_bytes + _ALIGNMENT, np.uint8)
        skip = -whole.ctypes.data % _ALIGNMENT
        self.numbers = whole[skip : skip + size_bytes]
        self.address = self.numbers.ctypes.data

    def free(self) -> None:
        """See `SeenMemory`; NumPy frees it."""


class Handover:
    """The card's end, for a host that waits at each launch."""

    def __init__(self, plan: Plan, experts: ExpertsBeside) -> None:
        """Allocates the memory.

        Args:
            plan: the card's.
            experts: the CPU's part.
        """
        self._layout = layout = HandoverLayout.of(plan)
        memory = _OwnMemory(layout.size_bytes)
        self._memory, self._experts, self._number = memory.numbers, experts, 0
        experts.attach(memory, layout)

    def begin(self) -> None:
        """Begins a step."""
        self._experts.begin()

    def give(self, phase: PhaseName, place: int, x: Floats, experts: Integers, weights: Floats | None) -> None:
        """Gives the CPU what the experts read; `place`: how many were given before, in this step."""
        layout = self._layout
        self._at(layout.x_at, x)[:] = x.reshape(-1)
        self._at(layout.experts_at, experts)[:] = experts.reshape(-1)
        if weights is not None:
            self._at(layout.weights_at, weights)[:] = weights.reshape(-1)
        self._memory[STEP_AT:].view(np.int32)[:3] = len(x), PHASES.index(phase), place
        self._number = (self._number + 1) % (1 << 32)
        self._memory.view(np.uint32)[:BLOCKS] = self._number

    def take(self, out: Floats) -> None:
        """Waits for the sum, and writes it to out.

        Raises:
            HostError: the CPU does not answer.
        """
        answered = self._memory[ANSWERED_AT:].view(np.uint32)
        late = time.monotonic() + _ANSWER_SECONDS
        while int(answered[0]) != self._number:
            time.sleep(0)
            if time.monotonic() > late:
                raise HostError("the CPU has not computed the experts of a layer")
        out.reshape(-1)[:] = self._at(self._layout.sum_at, out)

    def recover(self) -> None:
        """Begins anew after a step that has failed."""

        def clear() -> None:
            self._memory[: self._layout.x_at] = 0
            self._number = 0

        self._experts.reset(clear)

    def _at(self, place: int, like: npt.NDArray[np.float32] | npt.NDArray[np.int32]) -> npt.NDArray[np.generic]:
        return self._memory[place : place + like.nbytes].view(like.dtype)


def last_taken(phase: Phase) -> list[str]:
    """The last sum that a phase takes of the CPU, which all others precede; empty: it has all experts itself."""
    taken = [
        launch.outputs[0]
        for launch in phase.launches
        if isinstance(launch.body, HandoverCall) and launch.body.function == "take"
    ]
    return taken[-1:]
