"""The likeliest token after a recorded prompt, where the CPU sees it as soon as it is known.

MLX would copy the logits and pass over them twice, and the CPU would learn of the token when all of that has ended.
Here the kernel that chooses tokens of recorded decode steps runs right behind the prompt's graph (`mlxr_choose`).
"""

import ctypes
from collections import deque
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.hosts.cuda.address_table import address_table
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.handover.pinned_memory import PinnedMemory
from mlxr.runtime.hosts.cuda.launch_graph import FUNCTIONS, Event, GraphLaunch, LaunchGraph
from mlxr.runtime.hosts.cuda.recorded_batch import (
    CHOOSE,
    CHOOSE_THREADS,
    choosing_grid,
    numbers_of_choice,
    recorded_image,
)
from mlxr.runtime.hosts.mlx.host import MlxHost

_PLACES = 4
"""More than steps that are under way."""


class _Place(NamedTuple):
    graph: LaunchGraph
    end: Event
    seen: npt.NDArray[np.int32]


class PromptChoice:
    """What chooses the token, for all sizes of prompts: their logits lie at one place."""

    def __init__(self, host: MlxHost, prompts: mx.array, logits: int, width: int) -> None:
        """Prepares it.

        Args:
            host: whose failures these are.
            prompts: memory of the prompts.
            logits: the address in it at which they have their logits, [width] f32.
            width: see there.

        Raises:
            HostError: the driver refuses.
        """
        self._host = host
        numbers, words = numbers_of_choice(width)
        memory = on_device(mx.zeros((words,), mx.int32))
        self._token = memory[:1]
        mx.eval(self._token)
        addresses = [logits, *np.array(address_table([numbers, memory])).tolist()[:2]]
        function = FUNCTIONS.of(CHOOSE, recorded_image())
        self._places: deque[_Place] = deque()
        for _ in range(_PLACES):
            pinned = PinnedMemory(8)
            launch = GraphLaunch(function, choosing_grid(1, width), CHOOSE_THREADS, [*addresses, pinned.seen])
            seen = np.ctypeslib.as_array((ctypes.c_int32 * 2).from_address(pinned.address))
            self._places.append(_Place(LaunchGraph([launch], [prompts, numbers, memory, pinned]), Event(), seen))

    def start(self, stream: int) -> "ChosenOfPrompt":
        """Has it choose, after all that a stream has been given.

        Raises:
            HostError: the driver refuses.
        """
        self._places.rotate()
        graph, end, seen = self._places[0]
        try:
            graph.launch(stream, end)
        finally:
            end.record(stream)
        return ChosenOfPrompt(self._host, self._token | 0, end, seen)


class ChosenOfPrompt:
    """What it has chosen; see `Likeliest`. The tokens of the next prompt come to the same place."""

    def __init__(self, host: MlxHost, tokens: mx.array, end: Event, seen: npt.NDArray[np.int32]) -> None:
        """Notes what has been started."""
        self.tokens = tokens
        self._host, self._end, self._seen = host, end, seen

    def read(self) -> npt.NDArray[np.int32]:
        """See `Likeliest.read`."""
        with self._host.failures():
            self._end.wait()
        return self._seen.reshape(2, 1)
