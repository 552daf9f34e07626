"""CPU time of decode steps on host cuda, on a machine without a card: nothing is computed, all else is done.

    python benchmarks/cpu_of_steps.py [--sequences 1,16,64] [--step-ms 6] [--kinds greedy,drawn] [--profile]

A card that is made up takes as long for a step as asked for, and gives random tokens. While it computes, the
processor's cache is emptied, as other work does it. Calls of the driver cost nothing here, so a card's own figure (the
column "CPU of a step" of llama_bench.py) is greater; what Python and NumPy take is told to some 10 %, if all is quiet.
"""

import argparse
import cProfile
import ctypes
import pstats
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
from peers.shape_writer import write_shape

import mlxr
from mlxr.compiler.spec.change import Changes
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.hosts.cuda import (
    address_table,
    decode_steps,
    drawing,
    launch_graph,
    recorded_batch,
    recorded_products,
    recorded_prompts,
    recorded_step,
    recording,
)
from mlxr.runtime.hosts.cuda import host as cuda_host

_KINDS = {"greedy": Sampling(), "drawn": Sampling(temperature=0.7, seed=5)}
_CACHE_BYTES = 48 << 20
_FIRST = 128
"""Steps that are told by themselves: launches become longer in them."""
_MOST_TOLD = 64
"""More steps than are told together."""
_NOT_BYTES = 1000
"""The first token of those that are given: these are whole words."""
_INFO = {
    "architecture": "sm_90",
    "compute_capability_major": 9,
    "compute_capability_minor": 0,
    "device_name": "NVIDIA H200",
    "total_memory": 140 << 30,
    "free_memory": 139 << 30,
}


class _Card:
    """A stream of work that takes time.

    Attributes:
        own_seconds: CPU time that the card itself has taken, which is not told.
    """

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds, self.own_seconds, self.vocab = step_seconds, 0.0, 0
        self.profile: cProfile.Profile | None = None
        self.end = 0.0
        self._cache = np.zeros(_CACHE_BYTES // 8, np.int64)
        self._random = np.random.default_rng(1)
        self._names: list[str] = []
        self._steps: dict[int, int] = {}  # by the place where they write
        self.pinned: dict[int, int] = {}  # how many numbers there are, by their place

    def function(self, name: str, *_: object) -> int:
        """A kernel's handle."""
        self._names.append(name)
        return len(self._names) - 1

    def launch(self, launches: Sequence[Any]) -> None:
        """Starts a graph; one of a step writes its tokens at once."""
        last = launches[-1]
        if not hasattr(last, "function") or self._names[last.function] not in (recorded_batch.CHOOSE, drawing.DRAW):
            return
        used, most, place = time.thread_time(), recorded_batch.MOST_STEPS, last.addresses[3]
        self.end = max(time.perf_counter(), self.end) + self.step_seconds
        count = self.pinned[place]
        chosen = np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(place)).reshape(2, most, -1)
        step = self._steps[place] = self._steps.get(place, -1) + 1
        chosen[0, step % most] = self._random.integers(_NOT_BYTES, self.vocab, chosen.shape[2])
        chosen[1, step % most] = np.float32(1).view(np.uint32)
        self.own_seconds += time.thread_time() - used

    def wait(self, until: float) -> None:
        """Sleeps until then; afterwards nothing is in the processor's cache."""
        if time.perf_counter() >= until:
            return
        used = time.thread_time()
        if self.profile is not None:
            self.profile.disable()
        self._cache += 1
        time.sleep(max(0.0, until - time.perf_counter()))
        if self.profile is not None:
            self.profile.enable()
        self.own_seconds += time.thread_time() - used


def _use(card: _Card) -> None:
    """Makes MLX and the driver look as if there were this card."""

    class Event:
        at = 0.0

        def record(self, stream: int) -> None:
            self.at = card.end

        def wait(self) -> None:
            card.wait(self.at)

    class Pinned:
        def __init__(self, size_bytes: int, waits: object = ()) -> None:
            self._memory = np.zeros(size_bytes // 4, np.uint32)
            self.address = self.seen = self._memory.ctypes.data
            card.pinned[self.address] = size_bytes // 4

    def launched(*, output_shapes: Any, output_dtypes: Any, **_: Any) -> list[mx.array]:
        return [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]

    def graph(launches: Sequence[Any], kept: object, _: int = 0) -> SimpleNamespace:
        own = SimpleNamespace(kept=kept, upload=lambda stream: None)
        own.launch = lambda stream, end: card.launch(launches)
        return own

    def sent(count: int) -> SimpleNamespace:
        return SimpleNamespace(count=count, send=lambda *_: None)

    put: list[tuple[Any, str, Any]] = [
        (mx.cuda, "is_available", lambda: True),
        (mx, "device_info", lambda *_: _INFO),
        (mx.fast, "precompiled_cuda_kernel", launched),
        (address_table, "build_cubin", lambda *_: b""),
        (cuda_host, "build_cubins", lambda sources, *_: dict.fromkeys(sources, b"")),
        (cuda_host, "activated", None),
        (cuda_host, "begin_products", lambda *_: None),
        (cuda_host, "card_writer", lambda: None),
        (decode_steps, "why_unknown", lambda: None),
        (recorded_prompts, "SentNumbers", sent),
        (recorded_products, "products_image", lambda _: b""),
        (recorded_batch, "PinnedMemory", Pinned),
        (launch_graph.FUNCTIONS, "of", card.function),
    ]
    put += [(module, "build_cubin", lambda *_: b"") for module in (recorded_batch, drawing)]
    put += [(module, "overlap", lambda: True) for module in (recorded_step, recording)]
    put += [(module, "LaunchGraph", graph) for module in (recorded_batch, recorded_step, recorded_prompts)]
    for module in (recorded_step, recorded_prompts):
        put += [(module, "mlx_stream", lambda: 1), (module, "Event", Event)]
    for owner, name, value in put:
        setattr(owner, name, value)


def _measure(
    model: Model, card: _Card, prompts: list[list[int]], sampling: Sampling, steps: int
) -> tuple[float, float]:
    """Microseconds of CPU time of each of the first steps, and of each of those after them."""
    most = steps + 2 * model.host.most_steps
    generation = model.start(prompts, max_tokens=most, ignore_eos=True, sampling=sampling)
    waiting = {*range(len(prompts))}
    while waiting:
        waiting.difference_update(event.index for event in generation.next_launch())
    done, used, first = 0, 0.0, (0, 0.0)
    while done < steps:
        used -= time.thread_time() - card.own_seconds
        if card.profile is not None:
            card.profile.enable()
        told = sum(1 for _ in generation.next_launch())
        if card.profile is not None:
            card.profile.disable()
        used += time.thread_time() - card.own_seconds
        assert told, f"it has ended after {done} steps"
        done += told // len(prompts)
        if not first[0] and done >= _FIRST:
            first = done, used
    generation.close()
    return 1e6 * first[1] / first[0], 1e6 * (used - first[1]) / (done - first[0])


def main() -> int:
    """Measures and prints."""
    args = _arguments()
    card = _Card(1e-3 * args.step_ms)
    _use(card)
    counts, random = [int(count) for count in args.sequences.split(",")], np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        path, changes = (
            write_shape("tinyllama", "q4_k_m", Path(folder), 2),
            Changes(sequences=max(counts), context=1024),
        )
        with mlxr.load(path, host="cuda", changes=changes) as model:
            card.vocab = model.artifact.plan.vocab_size
            for count in counts:
                prompts = [random.integers(0, card.vocab, 32).tolist() for _ in range(count)]
                for prompt in prompts:  # they stay in the prefix cache, so all begin together
                    model.start([prompt], max_tokens=1).finish()
                for kind in args.kinds.split(","):
                    _tell(model, card, prompts, kind, args)
    return 0


def _tell(model: Model, card: _Card, prompts: list[list[int]], kind: str, args: argparse.Namespace) -> None:
    _measure(model, card, prompts, _KINDS[kind], _FIRST + _MOST_TOLD)
    card.profile = cProfile.Profile() if args.profile else None
    found = [_measure(model, card, prompts, _KINDS[kind], args.steps) for _ in range(args.turns)]
    first, later = (min(each) for each in zip(*found, strict=True))
    print(
        f"{len(prompts):3} sequences, {kind}: {first:.0f} us of each of the first {_FIRST} steps, later {later:.0f}",
        flush=True,
    )
    if card.profile is not None:
        pstats.Stats(card.profile).sort_stats("tottime").print_stats(40)
        card.profile = None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU time of decode steps on host cuda, without a card.")
    parser.add_argument("--sequences", default="1,16,64", help="how many decode together (1,16,64)")
    parser.add_argument("--step-ms", type=float, default=6.0, help="how long a step takes on the card (6)")
    parser.add_argument("--steps", type=int, default=320, help="of a measurement (320)")
    parser.add_argument("--turns", type=int, default=3, help="measurements, of which the least counts (3)")
    parser.add_argument("--kinds", default="greedy,drawn", help=f"of {', '.join(_KINDS)} (both)")
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    args = parser.parse_args()
    if args.steps < _FIRST + _MOST_TOLD:
        parser.error(f"--steps must be at least {_FIRST + _MOST_TOLD}")
    return args


if __name__ == "__main__":
    sys.exit(main())
