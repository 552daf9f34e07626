"""Runs decode steps on an NVIDIA GPU with simdgroups that are late at random, and compares the bits of all results.

    python tests/gpu_races.py                                        # small models, 60 seconds
    python tests/gpu_races.py --seconds 30 bf16 mixture model.gguf   # some of them, or files
    python tests/gpu_races.py --plant wait gate_up q4_k              # a planted mistake, which must be noticed

Launches of a recorded step overlap, clusters meet, and simdgroups share memory. What lacks a wait has the right
numbers nearly always. So each kernel is compiled twice: as it is, and with sleeps of random lengths in random
simdgroups, at its beginning, before and after its wait for the launch before, after barriers, and where threadgroups of
a cluster meet. Both run the same steps, with three sets of tokens in turn, since what the same step left would be
right. The exit code is 1 if a result differs, or if a planted mistake is not noticed.
"""

import argparse
import hashlib
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "support")]

import numpy as np  # noqa: E402 (found by the line above, as are the others)

import mlxr  # noqa: E402
from mlxr.compiler.artifact import Artifact  # noqa: E402
from mlxr.compiler.chips.catalog import find_chip  # noqa: E402
from mlxr.compiler.driver import compile_spec  # noqa: E402
from mlxr.compiler.errors import HostError  # noqa: E402
from mlxr.runtime.cache.arena import Arena  # noqa: E402
from mlxr.runtime.cache.pager import Pager  # noqa: E402
from mlxr.runtime.hosts.batch import Batch, BatchRequest, DecodeRequests  # noqa: E402
from mlxr.runtime.hosts.cuda import build  # noqa: E402
from mlxr.runtime.hosts.cuda.host import CudaHost  # noqa: E402
from mlxr.runtime.hosts.cuda.recorded_batch import recorded_image  # noqa: E402
from mlxr_tests.format_planes import random_buffers  # noqa: E402
from mlxr_tests.specs import small_spec  # noqa: E402
from mlxr_tests.variants import VARIANTS, variant  # noqa: E402

CASES: dict[str, dict[str, Any]] = {
    "bf16": {"weights": {"default": "bf16"}},
    "q4_k": {"weights": {"default": "q4_k"}},
    "q6_k": {"weights": {"default": "q6_k"}},
    "mixture": {
        "weights": {"default": "q4_k"},
        "model__mlp": {"intermediate_size": 256, "experts": {"count": 16, "per_token": 4, "router": "softmax_topk"}},
    },
    "f32": {"weights": {"default": "bf16"}, "activation_dtype": "f32"},
}
STEPS, SETS, LONGEST = 6, 3, 100

SLEEP = """
__device__ __forceinline__ void mlxr_late(const unsigned one_in, const unsigned most_ns) {
    unsigned x;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(x));
    x = (x ^ (threadIdx.x >> 5) * 0x85ebca6bu ^ blockIdx.x * 0x9e3779b9u ^ blockIdx.y * 0xc2b2ae35u) * 0x27d4eb2fu;
    x ^= x >> 15;
    if (x % one_in == 0) {
        __nanosleep((x >> 8) % most_ns);
    }
}
"""
WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
NEXT = 'asm volatile("griddepcontrol.launch_dependents;" ::);'
LATE: tuple[tuple[str, str], ...] = (
    (r"(#include <cuda_fp16.h>\n)", r"\1" + SLEEP),
    (r"(\[\[maybe_unused\]\] bool mlxr_due = true;)", r"\1 mlxr_late(4, 12000);"),
    (re.escape(WAIT), f"mlxr_late(8, 6000); {WAIT} mlxr_late(8, 3000);"),
    (re.escape(NEXT), f"{NEXT} mlxr_late(4, 16000);"),
    (r"(#define threadgroup_barrier\(flags\)) __syncthreads\(\)", r"\1 (__syncthreads(), mlxr_late(8, 1500))"),
    (r"(#define MLXR_ARRIVE\(\)) ", r"\1 mlxr_late(4, 3000); "),
    (r"(#define MLXR_LEAVE\(\)) ", r"\1 mlxr_late(4, 3000); "),
    (r'(asm volatile\("barrier.cluster.wait.acquire;" ::: "memory"\);)', r"\1 mlxr_late(4, 3000);"),
    (r"(#define MLXR_MEET_TO_READ\(\)[ \\]*\n)", r"\1 mlxr_late(4, 3000); "),
    (r"(#define MLXR_EXPECT\(are_together, bytes\)) ", r"\1 mlxr_late(4, 3000); "),
    (r"(#define MLXR_AWAIT_BEGIN\(\)) ", r"\1 mlxr_late(4, 3000); "),
    (r"(#define MLXR_AWAIT_SENT\(\)) ", r"\1 mlxr_late(4, 3000); "),
)
"""Where simdgroups are late: of how many one, by how many nanoseconds at most (the driver may double that)."""

PLANTS = {
    "wait": (re.escape(WAIT), ""),
    "barrier": (r"(#define threadgroup_barrier\(flags\)) __syncthreads\(\)", r"\1 (__syncwarp(), mlxr_late(8, 1500))"),
    "meeting": (r"(#define MLXR_MEET_TO_READ\(\)) +\\\n.*\\\n.*\n", r"\1 mlxr_late(4, 3000); __syncthreads();\n"),
    "leave": (r"(#define MLXR_LEAVE\(\)) .*", r"\1"),
    "begin": (r'asm volatile\("barrier.cluster.wait;" ::: "memory"\);', ""),
    "sent": (r"mlxr_await_bell\(mlxr_bell\);", ""),
}
"""Mistakes: what is left out, and how."""


def late(source: str) -> str:
    """A kernel's text with random sleeps."""
    if "mlxr_due" not in source and WAIT not in source:
        return source
    if "cuda_fp16.h" not in source:
        source = "#include <cuda_fp16.h>\n" + source
    for pattern, new in LATE:
        source = re.sub(pattern, new, source)
    return source


@contextmanager
def compiled_by(change: Callable[[str], str], name: str) -> Iterator[None]:
    """Compiles changed texts, which have places of their own in the cache, until the end of the block."""
    compile_cubin, digest = build.compile_cubin, build.digest
    recorded_image.cache_clear()
    with (
        mock.patch.object(build, "compile_cubin", lambda k, text, flags: compile_cubin(k, change(text), flags)),
        mock.patch.object(build, "digest", lambda *parts: digest(*parts, name)),
    ):
        yield
    recorded_image.cache_clear()


class Steps:
    """Decode steps of some sequences on a host: the same for all that have the same weights."""

    def __init__(self, host: CudaHost, rows: int, longest: int) -> None:
        """Computes a prompt for each sequence."""
        self.host, self.plan = host, host.plan
        self.pager = Pager.from_geometry(host.arena.geometry)
        self.ids = [self.pager.add_sequence() for _ in range(rows)]
        lengths = np.random.default_rng(0).integers(1, longest + 1, rows).tolist()
        self.starts: list[int] = [longest, *lengths[1:]]
        for number, (seq, count) in enumerate(zip(self.ids, self.starts, strict=True)):
            tokens, most = self._tokens(number, count), self.plan.max_tokens
            for begin in range(0, count, most):
                requests = [BatchRequest(seq, tokens[begin : begin + most], begin)]
                batch = Batch.build(requests, self.pager, self.plan.query_tile)
                self.pager.take_copies()
                host.read(host.step(batch))

    def _tokens(self, seed: int, count: int) -> list[int]:
        return np.random.default_rng(seed).integers(0, self.plan.vocab_size, count).tolist()

    def logits(self, which: int) -> "np.ndarray[Any, Any]":
        """The bits of the logits of a step with one of the sets of tokens."""
        return self._logits(which, 1)

    def chunks(self, which: int) -> "np.ndarray[Any, Any] | None":
        """The same with several tokens of each sequence; None: that are too many."""
        room = self.host.arena.geometry.context - max(self.starts)
        count = min(LONGEST, room, self.plan.max_tokens // len(self.ids))
        return self._logits(which, count) if count > 1 else None

    def _logits(self, which: int, count: int) -> Any:
        tokens = np.array(self._tokens(1000 + which, len(self.ids) * count)).reshape(-1, count).tolist()
        requests = [BatchRequest(i, some, n) for i, some, n in zip(self.ids, tokens, self.starts, strict=True)]
        batch = Batch.build(requests, self.pager, self.plan.query_tile)
        self.pager.take_copies()
        found = np.array(self.host.read(self.host.step(batch))).view(np.uint32)
        return self._taken_back(found)

    def chosen(self, which: int) -> "np.ndarray[Any, Any] | None":
        """What several steps choose, and the bits of the greatest logits; None: they are not recorded."""
        tokens = self._tokens(1000 + which, len(self.ids))
        requests = DecodeRequests(self.ids, tokens, list(self.starts))
        batch = Batch.build(requests, self.pager, self.plan.query_tile, None, STEPS)
        self.pager.take_copies()
        steps = self.host.likeliest_of_steps(batch)
        return self._taken_back(None if steps is None else steps.read().copy().view(np.uint32))

    def _taken_back(self, found: Any) -> Any:
        for seq, count in zip(self.ids, self.starts, strict=True):
            self.pager.truncate(seq, count)
        return found


def compare(name: str, hosts: Callable[[], CudaHost], end: float, plant: Sequence[str]) -> int:
    """Runs steps of a model as they are and with late simdgroups; returns how many differ (-1: nothing was planted)."""
    plain = hosts()
    planted = Counter[str]()

    def changed(text: str) -> str:
        kernel = re.search(r"void __launch_bounds__\([^)]*\) (\w+)\(", text)
        if plant and kernel and plant[1] in kernel[1]:
            pattern, new = PLANTS[plant[0]]
            text, count = re.subn(pattern, new, text)
            planted[kernel[1]] += count
        return late(text)

    with compiled_by(changed, f"late {plant} {hashlib.sha1(repr(LATE).encode()).hexdigest()}"):
        slow, steps, wrong = hosts(), 0, 0
        most = plain.plan.arena.max_sequences
        longest = min(LONGEST, (plain.plan.arena.context - STEPS) // 2)
        sizes = sorted({1, min(4, most), min(16, most), most})
        for turn, rows in enumerate(sizes):
            until = time.time() + (end - time.time()) / (len(sizes) - turn)
            base, other = (Steps(host, rows, longest) for host in (plain, slow))
            for steps_of in (base, other):  # a chunk is recorded when its size comes for the second time
                ways = [way for way in ("logits", "chosen", "chunks") if getattr(steps_of, way)(0) is not None]
            wanted = {(way, i): getattr(base, way)(i) for i in range(SETS) for way in ways}
            unsteady = [key for key, want in wanted.items() if (getattr(base, key[0])(key[1]) != want).any()]
            begun, recorded, worst, bad = steps, slow.recorded_steps, 0.0, Counter[str]()
            while time.time() < until:
                for (way, i), want in wanted.items():
                    found = getattr(other, way)(i)
                    steps += STEPS if way == "chosen" else 1
                    if (found != want).any():
                        bad[way] += 1
                        got, right = (x.view(np.float32) for x in (found, want))
                        if way != "chosen":
                            worst = max(worst, float(np.nanmax(np.abs(got - right)) / np.abs(right).max()))
            wrong += sum(bad.values())
            told = f"WRONG {dict(bad)}, logits by up to {worst:.2g}" if bad else "the same bits"
            told += f"; UNSTEADY without sleeps {unsteady}" if unsteady else ""
            wrong += len(unsteady)
            recorded = slow.recorded_steps - recorded
            print(f"{name}, {rows} rows: {steps - begun} steps ({recorded} recorded), {told}", flush=True)
    return wrong if not plant or planted.total() else -1


def artifact_of(name: str) -> Artifact:
    """A small model with the sizes that an H200 has, or a variant of the kernels."""
    if name in VARIANTS:
        return variant(name)
    changes: dict[str, Any] = {
        "model__hidden_size": 512,
        "model__num_layers": 4,
        "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64},
        "model__mlp": {"intermediate_size": 1024},
        "model__tensor_names": "canonical",
        "model__context": 256,
        "prefill_chunk": 128,
        "cache": {"mode": "paged", "dtype": "bf16", "block_size": 16, "max_sequences": 64},
        "activation_dtype": "bf16",
    }
    return compile_spec(small_spec(**changes | CASES[name]), targets=("metal",), chip=find_chip("h200")).artifact


def small_hosts(name: str) -> Callable[[], CudaHost]:
    """What makes hosts of a small model with the same random weights."""
    artifact = artifact_of(name)
    weights = random_buffers(artifact.plan)[0]
    return lambda: CudaHost(artifact, weights, Arena(artifact.plan.arena))


def file_hosts(path: str, kept: list[Any]) -> Callable[[], CudaHost]:
    """What makes hosts of the model of a file, with the same weights."""

    def load() -> CudaHost:
        if not kept:
            sizes = mlxr.Changes(sequences=int(os.environ.get("SEQUENCES", "64")), context=256, cache_memory="2GiB")
            kept.append(mlxr.load(path, host="cuda", changes=sizes))
            assert isinstance(kept[0].host, CudaHost)
            return kept[0].host
        first = kept[0].host
        return CudaHost(kept[0].artifact, first.weights, Arena(first.arena.geometry))

    return load


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description="decode steps with late simdgroups; see the file's first lines")
    parser.add_argument("models", nargs="*", help=f"{', '.join(CASES)}, a variant of the kernels, or a file")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--plant", nargs=2, default=(), metavar=("WHAT", "KERNEL"), help=f"one of {', '.join(PLANTS)}")
    options = parser.parse_args()
    names, kept, begun, wrong = options.models or list(CASES), list[Any](), time.time(), 0
    for turn, name in enumerate(names):
        hosts = small_hosts(name) if name in {*CASES, *VARIANTS} else file_hosts(name, kept)
        left = begun + options.seconds - time.time()
        try:
            wrong += compare(name, hosts, time.time() + left / (len(names) - turn), options.plant)
        except HostError as error:
            if not options.plant:
                raise
            print(f"noticed: {error}")
            return 0
        while kept:
            kept.pop().close()
    if options.plant:
        print("no kernel has such a name" if wrong < 0 else "noticed" if wrong else "NOT NOTICED")
        return int(wrong <= 0)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
