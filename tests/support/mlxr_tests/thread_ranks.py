"""All ranks of a split model in one process: a thread for each.

They run the programs and read the weights that processes would. Programs in C exchange rows by themselves, in shared
memory or over sockets, as in processes; what they ask for is exchanged in memory.
"""

import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest, query_tiles_of
from mlxr.runtime.hosts.exchange import Floats, Wires
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.hosts.select import make_host
from mlxr.runtime.parallel.rank_exchange import RankExchange
from mlxr.runtime.weights.weight_file import WeightFile

_PATIENCE_S = 60.0
_PAGE = 4096

Transport = Literal["memory", "sockets", "calls"]
"""How programs in C exchange rows: `calls`, the collectives of this file do it."""


class Meeting:
    """Where the threads of all ranks meet."""

    def __init__(self, tensor: int, pipeline: int, transport: Transport) -> None:
        self.tensor, self.pipeline, self.transport = tensor, pipeline, transport
        self.sockets: dict[tuple[int, int], socket.socket] = {}
        self.memory: dict[int, Floats] = {}
        for rank in range(tensor * pipeline):
            for other in range(rank):
                self.sockets[rank, other], self.sockets[other, rank] = socket.socketpair()
        self.stages = [threading.Barrier(tensor) for _ in range(pipeline)]
        self.all = threading.Barrier(tensor * pipeline)
        self.given: dict[int, Floats | None] = {}
        self.rows: list[list[Floats]] = [[] for _ in range(tensor * (pipeline + 1))]
        """Of each rank, what it has not received yet, in order."""
        self.sent = threading.Condition()


class ThreadCollectives:
    """The collectives of one rank; see `Collectives`.

    Attributes:
        calls: which, in their order.
        gathered: numbers of results that it gave.
    """

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank = meeting, rank
        self.stage, self.tensor_rank = divmod(rank, meeting.tensor)
        self.calls: list[str] = []
        self.gathered = 0

    def wires(self, shared_bytes: int) -> Wires | None:
        meeting, rank, tensor = self.meeting, self.rank, self.meeting.tensor
        if meeting.transport == "calls":
            return None
        stage = range(self.stage * tensor, (self.stage + 1) * tensor)
        files = {other: link.fileno() for (own, other), link in meeting.sockets.items() if own == rank}
        wires = Wires(
            sockets=tuple(files.get(other, -1) for other in stage),
            previous=files.get(rank - tensor, -1),
            next=files.get(rank + tensor, -1),
            names={file: other for other, file in files.items()},
        )
        if meeting.transport == "sockets" or tensor == 1:
            return wires
        meeting.memory[rank] = np.zeros((shared_bytes + _PAGE) // 4 + 1, np.float32)
        meeting.stages[self.stage].wait(_PATIENCE_S)
        return replace(wires, memory=tuple(-(-meeting.memory[other].ctypes.data // _PAGE) * _PAGE for other in stage))

    def all_sum(self, x: Floats, out: Floats) -> None:
        self.calls.append("all_sum")
        meeting, barrier = self.meeting, self.meeting.stages[self.stage]
        meeting.given[self.rank] = x.copy()
        barrier.wait(_PATIENCE_S)
        first = self.stage * meeting.tensor
        addends = [meeting.given[rank] for rank in range(first, first + meeting.tensor)]
        out[:] = np.sum([addend for addend in addends if addend is not None], axis=0, dtype=np.float32)
        barrier.wait(_PATIENCE_S)

    def send(self, x: Floats) -> None:
        self.calls.append("send")
        if self.tensor_rank == self.meeting.tensor - 1:
            with self.meeting.sent:
                for rank in range(self.rank + 1, self.rank + 1 + self.meeting.tensor):
                    self.meeting.rows[rank].append(x.copy())
                self.meeting.sent.notify_all()

    def receive(self, out: Floats) -> None:
        self.calls.append("receive")
        with self.meeting.sent:
            arrived = self.meeting.sent.wait_for(lambda: self.meeting.rows[self.rank], _PATIENCE_S)
            assert arrived, "the stage before sends nothing"
            out[:] = self.meeting.rows[self.rank].pop(0)

    def gather(self, x: Floats | None, bounds: Sequence[int], out: Floats) -> None:
        self.calls.append("gather")
        self.gathered += 0 if x is None else x.size
        meeting = self.meeting
        meeting.given[self.rank] = None if x is None else x.copy()
        meeting.all.wait(_PATIENCE_S)
        if self.rank == 0:
            for t in range(meeting.tensor):
                columns = meeting.given[(meeting.pipeline - 1) * meeting.tensor + t]
                if columns is not None:
                    out[:, bounds[t] : bounds[t + 1]] = columns
        meeting.all.wait(_PATIENCE_S)


class ThreadRanks:
    """The ranks of an artifact that is split, with the weights of a file, driven through one pager."""

    def __init__(
        self,
        artifact: Artifact,
        file: WeightFile,
        host: str = "cpu",
        transport: Transport = "memory",
        threads: int = 1,
    ) -> None:
        split = artifact.parallel
        assert split is not None, "the artifact is split"
        self.artifacts = [artifact.of_rank(rank) for rank in range(split.size)]
        self.plan = self.artifacts[0].plan
        plans = [part.plan.rank for part in self.artifacts if part.plan.rank is not None]
        meeting = Meeting(split.tensor, split.pipeline, transport)
        self.collectives = [ThreadCollectives(meeting, rank) for rank in range(split.size)]
        self.arenas = [Arena(part.plan.arena) for part in self.artifacts]
        self.hosts: list[Host] = [
            make_host(host, part, file, arena, threads=threads, progress=None)
            for part, arena in zip(self.artifacts, self.arenas, strict=True)
        ]
        self.pager = Pager.from_geometry(self.plan.arena)
        self._threads = ThreadPoolExecutor(split.size)
        self.exchanges = [RankExchange(cast(Any, own), part) for own, part in zip(self.collectives, plans, strict=True)]
        list(self._threads.map(lambda host, own: host.use(own), self.hosts, self.exchanges))

    def step(self, batch: Batch) -> Floats:
        """Runs a batch on all ranks; the logits at rank 0."""
        others = range(1, len(self.pager.others) + 1)
        copies = [self.pager.take_copies(), *map(self.pager.take_copies_of, others)]

        def run(host: Host) -> Any:
            for group, pairs in enumerate(copies):
                if pairs:
                    host.copy_blocks(pairs, group)
            tile = host.plan.query_tile  # of each rank's own program
            own = replace(batch, query_tile=tile, query_tiles=query_tiles_of(batch.query_start, tile))
            return np.array(host.read(host.step(own)))

        first, *_ = self._threads.map(run, self.hosts)
        return first

    def feed(self, *requests: tuple[int, Sequence[int]]) -> Floats:
        """Appends tokens to sequences and returns the logits after each of them."""
        parts = [BatchRequest(seq, list(tokens), self.pager.length(seq), "all") for seq, tokens in requests]
        return self.step(Batch.build(parts, self.pager, self.plan.query_tile))


def save_canonical(folder: Path, artifact: Artifact, seed: int = 0) -> Path:
    """Random weights of a model that is not split, in a file with the names of family `canonical`."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, mx.array] = {}
    for part in (part for weight in artifact.plan.weights for part in weight.parts):
        assert not part.format.is_quantised, "files of this kind have floats"
        if part.name in tensors:
            continue
        scale = 0.5 if len(part.shape) == 1 else 1.0 if part.name == "embedding" else part.shape[1] ** -0.5
        around = 1.0 if len(part.shape) == 1 and part.name.endswith("norm") else 0.0
        around = -1.5 if part.name.endswith(".recurrent.a") else around  # states decay
        numbers = rng.standard_normal(part.shape, dtype=np.float32) * np.float32(scale) + np.float32(around)
        tensors[part.safetensors[0].tensors[0]] = mx.array(numbers)
    path = folder / "model.safetensors"
    mx.save_safetensors(str(path), tensors)
    return path
