"""The likeliest token after a recorded prompt, where the CPU sees it as soon as it is known.

MLX would copy the logits and pass over them twice, and the CPU would learn of the token when all of that has ended.
Here the kernel that chooses tokens of recorded decode steps runs right behind the prompt's graph (`mlxr_choose`). Who
sleeps until the driver wakes him is told 100 to 200 us late, so whoever waits wakes up shortly before (`ExpectedEnds`).
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.hosts.cuda.address_table import address_table
from mlxr.runtime.hosts.cuda.device_array import on_device
from mlxr.runtime.hosts.cuda.handover.pinned_memory import PinnedMemory
from mlxr.runtime.hosts.cuda.launch_graph import Event, LaunchGraph
from mlxr.runtime.hosts.cuda.recorded_batch import choose_call, numbers_of_choice
from mlxr.runtime.hosts.mlx.host import MlxHost

_PLACES = 4
"""More than steps that are under way."""
_EARLY, _EARLIEST = 0.12, 1.5e-3
"""How long before an end that is expected the CPU is awake: a share of the whole, and seconds at most."""
_AWAKE = 3e-3
"""Seconds that it is awake at most: clocks of cards fall by an eighth when much is to be done."""
_NAP = 1e-3
"""Seconds after which it looks whether the prompt has ended: a time of another size, or behind steps, is too long."""
_SLOWER = 1.03
"""By how much what is expected grows, at most, from one prompt to the next."""
_clock, _sleep = time.perf_counter, time.sleep


class _Place(NamedTuple):
    graph: LaunchGraph
    end: Event
    seen: npt.NDArray[np.int32]


class ExpectedEnds:
    """How long prompts take, by their size: as long as the last ones took, or somewhat less."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._seconds = dict[int, float]()

    def seconds(self, size: int) -> float:
        """What is expected of a size, at least nearly; 0: nothing is known."""
        if not self._seconds:
            return 0.0
        known = min(self._seconds, key=lambda other: abs(other - size))
        more = size / known - 1
        return self._seconds[known] * (1 + (more if more < 0 else more / 2))  # larger ones take less for a token

    def took(self, size: int, seconds: float) -> None:
        """Takes what one took."""
        self._seconds[size] = min(seconds, _SLOWER * self._seconds.get(size, seconds))

    def wait(self, end: Event, begin: float, size: int) -> None:
        """Waits for the end of a prompt, by the clock of this module begun at `begin`: asleep, and then awake.

        Raises:
            HostError: something on the card has failed.
        """
        if end.has_ended:
            return
        if seconds := self.seconds(size):
            awake = begin + seconds - min(_EARLIEST, _EARLY * seconds)
            while (left := awake - _clock()) > 0 and not end.has_ended:
                _sleep(min(left, _NAP))
            until = _clock() + _AWAKE
            while not end.has_ended and _clock() < until:
                pass
        end.wait()
        self.took(size, _clock() - begin)


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
        self._expected, self._places = ExpectedEnds(), deque[_Place]()
        for _ in range(_PLACES):
            pinned = PinnedMemory(8)
            launch = choose_call([*addresses, pinned.seen], 1, width, waits=False).launch({})
            seen = np.ctypeslib.as_array((ctypes.c_int32 * 2).from_address(pinned.address))
            self._places.append(_Place(LaunchGraph([launch], [prompts, numbers, memory, pinned]), Event(), seen))

    def start(self, stream: int, size: int) -> "ChosenOfPrompt":
        """Has it choose, after all that a stream has been given: last a prompt of some size.

        Raises:
            HostError: the driver refuses.
        """
        self._places.rotate()
        graph, end, seen = self._places[0]
        try:
            graph.launch(stream, end)
        finally:
            end.record(stream)
        wait = partial(self._expected.wait, end, _clock(), size)
        return ChosenOfPrompt(self._host, self._token | 0, wait, seen)


class ChosenOfPrompt:
    """What it has chosen; see `Likeliest`. The tokens of the next prompt come to the same place."""

    def __init__(self, host: MlxHost, tokens: mx.array, wait: Callable[[], None], seen: npt.NDArray[np.int32]) -> None:
        """Notes what has been started."""
        self.tokens = tokens
        self._host, self._wait, self._seen = host, wait, seen

    def read(self) -> npt.NDArray[np.int32]:
        """See `Likeliest.read`."""
        with self._host.failures():
            self._wait()
        return self._seen.reshape(2, 1)
