"""Ways to compute one sequence: in chunks, one token at a time, beside other sequences, as a fork, in other blocks.

A trace has the bits that a sequence leaves: logits of its tokens, and K and V of each token in each layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.host import Host
from mlxr_tests.arenas import nan_arena, snapshot
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.kernel_host import make_kernel_host
from mlxr_tests.memory_weights import read_memory
from mlxr_tests.native_weights import random_native
from mlxr_tests.op_bench import scatter

Bits = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Way:
    """A way to compute a sequence.

    Attributes:
        chunks: tokens of each step; they add up to the sequence.
        company: other sequences that take part in its steps.
        most: the most tokens of another sequence in a step.
        fork: from this step on, the sequence is a fork of itself, and the original is one more company; None: never.
        seed: of the other sequences, their places in the batch, and the order of free blocks.
    """

    chunks: tuple[int, ...]
    company: int = 0
    most: int = 1
    fork: int | None = None
    seed: int = 0

    def __str__(self) -> str:
        chunks = "ones" if set(self.chunks) == {1} else "+".join(map(str, self.chunks))
        company = f" beside {self.company} of up to {self.most}" if self.company else ""
        return chunks + company + (f", forked at step {self.fork}" if self.fork is not None else "")


@dataclass(frozen=True)
class Trace:
    """What a way leaves: logits by position, and K and V, [layers, tokens, KV heads, elements]."""

    logits: Mapping[int, Bits]
    rows: Mapping[str, Bits]

    def differences(self, other: "Trace") -> list[str]:
        """What differs in bits, first of all K and V by layer; empty if nothing does."""
        found = []
        for layer in range(max(map(len, self.rows.values()), default=0)):
            for name in self.rows:
                tokens = (self.rows[name][layer] != other.rows[name][layer]).any(axis=(1, 2))
                if tokens.any():
                    found.append(f"{name} of layer {layer} at {np.flatnonzero(tokens).tolist()}")
        common = sorted(self.logits.keys() & other.logits.keys())
        assert common, "two ways have logits of a common token"
        at = [i for i in common if (self.logits[i].view(np.uint32) != other.logits[i].view(np.uint32)).any()]
        return found + ([f"logits at {at}"] if at else [])


class Ways:
    """Computes the same sequence in different ways on one host."""

    def __init__(self, artifact: Artifact, *, threads: int | None = None) -> None:
        """An artifact of target metal runs on the host of `kernel_host`, another on cpu with this many threads."""
        self.plan = artifact.plan
        self.arena = nan_arena(Arena(self.plan.arena))
        self.host: Host
        if "metal" in self.plan.targets:
            self.host = make_kernel_host(artifact, random_buffers(self.plan)[0], self.arena)
        else:
            self.host = CpuHost(artifact, read_memory(random_native(self.plan)[0]), self.arena, threads=threads)

    def trace(self, tokens: Sequence[int], way: Way) -> Trace:
        """Computes the sequence in one way."""
        assert sum(way.chunks) == len(tokens), f"{way} does not have {len(tokens)} tokens"
        rng, logits, done = np.random.default_rng(way.seed), {}, 0
        nan_arena(self.arena)
        pager = Pager.from_geometry(self.plan.arena)
        if way.seed:
            scatter(pager)
        seq, others = pager.add_sequence(), [pager.add_sequence() for _ in range(way.company)]
        for step, count in enumerate(way.chunks):
            if step == way.fork:
                others.append(seq)
                seq = pager.fork(seq)
            parts = self._company(pager, rng, others, way.most, self.plan.max_tokens - count)
            parts.insert(int(rng.integers(0, len(parts) + 1)), (seq, list(tokens[done : done + count])))
            asks_all = count + len(parts) <= self.plan.max_rows
            requests = [
                BatchRequest(s, part, pager.length(s), "all" if s == seq and asks_all else "last") for s, part in parts
            ]
            batch = Batch.build(requests, pager, self.plan.query_tile)
            if copies := pager.take_copies():
                self.host.copy_blocks(copies)
            of_step = np.array(self.host.read(self.host.step(batch)))
            first = int(batch.query_start[[s for s, _ in parts].index(seq)])
            for row, at in zip(of_step, batch.logit_rows.tolist(), strict=True):
                if first <= at < first + count:
                    logits[done + at - first] = row
            done += count
        table, size = pager.block_table(seq), self.plan.arena.block_size
        slots = [table[i // size] * size + i % size for i in range(len(tokens))]
        return Trace(logits, {name: bits[:, slots] for name, bits in snapshot(self.arena).items()})

    def _company(
        self, pager: Pager, rng: np.random.Generator, others: list[int], most: int, budget: int
    ) -> list[tuple[int, list[int]]]:
        parts = []
        for other in rng.permutation(others).tolist():
            room = min(budget, most, self.plan.arena.context - pager.length(other))
            if room > 0:
                count = int(rng.integers(1, room + 1))
                parts.append((other, rng.integers(0, self.plan.vocab_size, count).tolist()))
                budget -= count
        return parts


def random_chunks(rng: np.random.Generator, length: int, most: int) -> tuple[int, ...]:
    """Lengths of steps, each from 1 to `most`, that add up to a length."""
    chunks: list[int] = []
    while (left := length - sum(chunks)) > 0:
        chunks.append(int(rng.integers(1, min(left, most) + 1)))
    return tuple(chunks)


def check_same_bits(artifact: Artifact, *, seed: int = 0, threads: Sequence[int | None] = (None,)) -> None:
    """Checks that a random sequence leaves the same bits in all ways, with each number of threads.

    Raises:
        AssertionError: two ways differ; the message says which and where.
    """
    plan, rng = artifact.plan, np.random.default_rng(seed)
    length, most, others = plan.arena.context, plan.max_tokens, min(3, plan.arena.max_sequences - 1)
    tokens = rng.integers(0, plan.vocab_size, length).tolist()
    ways = [
        Way((*[most] * (length // most), *([length % most] if length % most else []))),
        Way((1,) * length, seed=1),
        Way(random_chunks(rng, length, 8), seed=2),
        Way(random_chunks(rng, length, most), seed=3),
    ]
    for company in range(1, others + 1):
        ways.append(Way((length // 2, *[1] * (length - length // 2)), company, 1, seed=3 + company))
        ways.append(Way(random_chunks(rng, length, 7), company, 9, seed=6 + company))
    if others > 1:
        ways.append(Way(random_chunks(rng, length, 9), 1, 4, fork=1, seed=10))
    first: Trace | None = None
    for count in threads:
        host = Ways(artifact, threads=count)
        for way in ways:
            trace = host.trace(tokens, way)
            first = first or trace
            differences = first.differences(trace)
            assert not differences, f"{way} ({count or 'all'} threads) is not {ways[0]}: {'; '.join(differences)}"
        host.host.close()
