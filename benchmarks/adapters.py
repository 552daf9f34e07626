"""What LoRA adapters cost: decode steps of many sequences over several adapters, beside the same model without any.

    python benchmarks/adapters.py MODEL [--sequences 16] [--adapters 4] [--rank 16] [--host cpu] [--cpu]

MODEL is a file or folder. It is loaded twice, without places for adapters and with them; steps of both take turns, and
the figures are medians. Adapters have random matrices for every projection that they may change. Prints one line for
each case; the exit code is 1 if the adapted steps have less than `--least` of the speed without (default: 0.9). On a
machine that does something else, too, `--cpu` takes the processor time of one thread in place of the time that passes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

import mlxr
from mlxr.compiler.artifact import DOWN, UP, adapted_matrices
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.model import Model
from mlxr.runtime.hosts.batch import NO_ADAPTER, BatchRequest, DecodeRequests

Uses = Sequence[tuple[int, float]] | None


class Steps:
    """Sequences of one model that grow by a token each step."""

    def __init__(self, model: Model, count: int, prompt: int, clock: Callable[[], float]) -> None:
        """Reads a prompt of random tokens for each; `clock` times steps."""
        self._model, self._random, self._clock = model, np.random.default_rng(0), clock
        self._ids = [model.pager.add_sequence() for _ in range(count)]
        self._length = prompt
        for seq_id in self._ids:
            tokens = self._random.integers(0, model.artifact.plan.vocab_size, prompt).tolist()
            self._launch([BatchRequest(seq_id, tokens, 0)], None)

    def _launch(self, requests: list[BatchRequest] | DecodeRequests, uses: Uses) -> float:
        start = self._clock()
        self._model.host.read(launch_step(self._model.host, self._model.pager, requests, adapters=uses))
        return self._clock() - start

    def step(self, uses: Uses) -> float:
        """One token of each sequence; returns the seconds that it took."""
        tokens = self._random.integers(0, self._model.artifact.plan.vocab_size, len(self._ids)).tolist()
        seconds = self._launch(DecodeRequests(self._ids, tokens, [self._length] * len(self._ids)), uses)
        self._length += 1
        return seconds


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Measure what LoRA adapters cost.")
    parser.add_argument("model")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--host", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--least", type=float, default=0.9)
    parser.add_argument("--cpu", action="store_true", help="the processor time of one thread")
    args = parser.parse_args()
    clock = time.thread_time if args.cpu else time.perf_counter
    args.threads = 1 if args.cpu else args.threads
    plain = _load(args, None)
    adapted = _load(args, mlxr.Adapters(rank=args.rank, slots=args.adapters))
    for slot in range(args.adapters):
        adapted.host.write_adapter(slot, _random_adapter(adapted, slot))
    uses = [(i % args.adapters, 1.0) for i in range(args.sequences)]
    cases: dict[str, tuple[Steps, Uses]] = {
        "without": (Steps(plain, args.sequences, args.prompt, clock), None),
        "with places, none used": (Steps(adapted, args.sequences, args.prompt, clock), [NO_ADAPTER] * args.sequences),
        f"{args.adapters} adapters of rank {args.rank}": (Steps(adapted, args.sequences, args.prompt, clock), uses),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(args.steps + 10):
        for name, (steps, used) in cases.items():
            seconds = steps.step(used)
            if number >= 10:
                times[name].append(seconds)
    usual = statistics.median(times["without"])
    for name, own in times.items():
        median = statistics.median(own)
        speed = args.sequences / median
        print(f"{name:28} {1000 * median:8.3f} ms a step  {speed:9.1f} tokens/s  {usual / median:5.3f}")
    return int(usual / statistics.median(own) < args.least)


def _load(args: argparse.Namespace, places: mlxr.Adapters | None) -> Model:
    changes = mlxr.Changes(sequences=3 * args.sequences, adapters=places, context=args.prompt + args.steps + 16)
    return mlxr.load(args.model, host=args.host, threads=args.threads, changes=changes, mtp="off")


def _random_adapter(model: Model, seed: int) -> dict[str, "np.ndarray[tuple[int, int], np.dtype[np.float32]]"]:
    random, places = np.random.default_rng(seed), model.artifact.spec.adapters
    assert places is not None, "it has places"
    found = {}
    for name, (rows, columns) in adapted_matrices(model.artifact.spec.model).items():
        found[name + DOWN] = random.standard_normal((places.rank, columns), dtype=np.float32) * np.float32(
            columns**-0.5
        )
        found[name + UP] = random.standard_normal((places.rank, rows), dtype=np.float32) * np.float32(0.01)
    return found


if __name__ == "__main__":
    sys.exit(main())
