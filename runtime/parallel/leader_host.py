"""Rank 0's host: it tells the other ranks what to execute, and executes its own part of it."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import HostError, RankLostError
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.host import Host, Logits
from mlxr.runtime.parallel.connection import MessageKind
from mlxr.runtime.parallel.leader import Leader
from mlxr.runtime.parallel.step_message import STATES, pack_step, starts_ahead


class LeaderHost(Host):
    """Rank 0's own host, and the other ranks'. The arena's blocks have the same ids on all ranks.

    It pipelines where ranks do (see `starts_ahead`): then the others are also told of a step whose ids are still
    computed, and get them within it.
    """

    def __init__(
        self, inner: Host, leader: Leader, bytes_of_ranks: Sequence[tuple[int, int]], notes: Sequence[str] = ()
    ) -> None:
        """Takes over the ranks, which are ready.

        Args:
            inner: rank 0's own host, which has its collectives; closed with this one.
            leader: connections to the other ranks; closed with this host.
            bytes_of_ranks: the other ranks' `Host.block_bytes` and `Host.slot_bytes`, in their order.
            notes: the other ranks' `Host.notes`.
        """
        self._inner, self._leader = inner, leader
        self._bytes = dict(zip(leader.ranks, bytes_of_ranks, strict=True))
        self._rank_notes = tuple(notes)
        self.name, self.builds_late, self.gathers_tops = inner.name, inner.builds_late, inner.gathers_tops
        self.artifact, self.plan, self.program = inner.artifact, inner.plan, inner.program
        self.arena, self.threads = inner.arena, inner.threads
        self.pipelines = starts_ahead(inner)
        self._end: mx.array | None = None
        """Computed when the last step has ended."""

    @property
    def launches(self) -> Counter[str]:
        """Rank 0's own."""
        return self._inner.launches

    @launches.setter
    def launches(self, counts: Counter[str]) -> None:
        self._inner.launches = counts

    @property
    def notes(self) -> tuple[str, ...]:
        """All ranks'."""
        return (*self._inner.notes, *self._rank_notes)

    @notes.setter
    def notes(self, notes: tuple[str, ...]) -> None:
        self._inner.notes = notes

    @property
    def block_bytes(self) -> int:
        """Bytes of K and V of one block, all layers, all ranks."""
        return self._inner.block_bytes + sum(self._bytes_of(0).values())

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of states, all layers, all ranks."""
        return self._inner.slot_bytes + sum(self._bytes_of(None).values())

    def _bytes_of(self, group: int | None) -> dict[int, int]:
        """By rank the bytes of a block, or without a group of a slot, of the other ranks that have some."""
        assert group in (0, None), "ranks have one group of layers"
        return {rank: own[group is None] for rank, own in self._bytes.items() if own[group is None]}

    def when_lost(self, listener: Callable[[RankLostError], object]) -> None:
        """See `Host.when_lost`."""
        self._leader.loss.when_lost(listener)

    def step(self, batch: Batch) -> Logits:
        """Tells all ranks of a step and runs rank 0's part; see `Host.step`.

        Raises:
            RankLostError: a rank was lost, or a part of the step failed: the process ends soon.
        """
        with Uninterrupted():
            self._leader.send(MessageKind.STEP, pack_step(batch, self.arena.geometry.block_size))
            try:
                if isinstance(batch.tokens, mx.array):
                    assert self.pipelines, "the ids of a step are known where ranks do not pipeline"
                    batch = replace(batch, tokens=self._inner.shared_ids(batch.tokens, batch.num_tokens))
                logits = self._inner.step(batch)
                if self._inner.pipelines:  # the collectives of this step come before those of the next one
                    assert isinstance(logits, mx.array), "a host that pipelines gives lazy logits"
                    token = self._inner.arena.token
                    self._end = mx.depends([token], [logits])[0]
                    self._inner.start(logits, token, self._end)
            except Exception as error:
                self._failed("a step", error)
        return logits

    def read(self, result: Logits) -> npt.NDArray[Any]:
        """See `Host.read`.

        Raises:
            RankLostError: a rank was lost, or a part of the step failed: the process ends soon.
        """
        with Uninterrupted():
            try:
                return self._inner.read(result)
            except Exception as error:
                self._failed("a step", error)

    def start(self, *results: mx.array) -> None:
        """See `Host.start`.

        Raises:
            RankLostError: a rank was lost, or a part of the step failed: the process ends soon.
        """
        with Uninterrupted():
            try:
                self._inner.start(*results)
            except Exception as error:
                self._failed("a step", error)

    def copy_to_read(self, result: mx.array) -> mx.array:
        """See `Host.copy_to_read`."""
        return self._inner.copy_to_read(result)

    def to_read_together(self, results: Sequence[mx.array]) -> list[mx.array]:
        """See `Host.to_read_together`."""
        return self._inner.to_read_together(results)

    def send(self, numbers: npt.NDArray[Any]) -> mx.array:
        """See `Host.send`."""
        return self._inner.send(numbers)

    def copy_blocks(self, copies: Sequence[tuple[int, int]], group: int = 0) -> None:
        """See `Host.copy_blocks`; all ranks copy."""
        with Uninterrupted():
            data = group.to_bytes(4, "little") + np.array(copies, np.int32).tobytes()
            self._leader.send(MessageKind.COPY, data)
            try:
                self._inner.copy_blocks(copies, group)
            except Exception as error:
                self._failed("a copy of blocks", error)

    def read_blocks(self, block_ids: Sequence[int], group: int | None = 0) -> npt.NDArray[np.uint8]:
        """See `Host.read_blocks`: of each block the bytes of rank 0, then those of the others in their order."""
        count, sizes = len(block_ids), self._bytes_of(group)
        data = np.array([STATES if group is None else group, *block_ids], np.int32).tobytes()
        with Uninterrupted():
            for rank in sizes:
                self._leader.send(MessageKind.READ, data, rank)
            parts, failures = [], []
            for rank, size in sizes.items():  # all answer, whatever fails here
                try:
                    answer = self._leader.receive(rank, MessageKind.BLOCKS, count * size)
                except RankLostError:
                    raise
                except HostError as error:
                    failures.append(error)
                else:
                    parts.append(np.frombuffer(answer, np.uint8).reshape(count, size))
            if failures:
                raise failures[0]
            return np.concatenate([self._inner.read_blocks(block_ids, group), *parts], axis=1)

    def write_blocks(self, block_ids: Sequence[int], data: npt.NDArray[np.uint8], group: int | None = 0) -> None:
        """See `Host.write_blocks`; each rank gets its own bytes."""
        head = np.array([STATES if group is None else group, len(block_ids), *block_ids], np.int32).tobytes()
        start = own = self._inner.slot_bytes if group is None else self._inner.block_bytes
        with Uninterrupted():
            for rank, size in self._bytes_of(group).items():
                self._leader.send(MessageKind.WRITE, head + data[:, start : start + size].tobytes(), rank)
                start += size
            try:
                self._inner.write_blocks(block_ids, np.ascontiguousarray(data[:, :own]), group)
            except Exception as error:
                self._failed("a write of blocks", error)

    def close(self) -> None:
        """Lets the other ranks end, and closes the own host."""
        if self._end is not None and self._leader.loss.error is None:
            with Uninterrupted(), suppress(RuntimeError):
                mx.eval(self._end)  # a step that nobody reads may still run: the others need this rank for it
        self._leader.close()
        self._inner.close()

    def _failed(self, what: str, error: Exception) -> NoReturn:
        """The other ranks do it, and this one cannot: nothing would be the same from now on."""
        if isinstance(error, RankLostError):
            raise error
        self._leader.fail(f"{what} failed on rank 0: {type(error).__name__}: {error}")


class Uninterrupted:
    """A `with` block in which Ctrl-C waits until the end. It changes nothing outside the main thread.

    For what must not stop half-way, such as a step that other ranks have been told of.
    """

    def __enter__(self) -> None:
        """Holds the signal back."""
        self._came: FrameType | None = None
        self._has_come = self._is_main = False
        if threading.current_thread() is threading.main_thread():
            self._is_main = True
            self._before: Any = signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *exception: object) -> None:
        """Delivers it."""
        if not self._is_main:
            return
        signal.signal(signal.SIGINT, self._before)
        if self._has_come and callable(self._before):
            self._before(signal.SIGINT, self._came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._has_come, self._came = True, frame
