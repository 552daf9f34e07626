"""How long a message between ranks takes over a link: what `runtime/parallel/links.py` does, in hops.

A hop takes the link's latency, and the message's bytes by its bandwidth. Every message of a GPU's also passes through
the CPU once (the handover). Per message:

1. A sum of n ranks gathers what each has. On ring that is n - 1 hops; where every rank reaches every other (jaccl) it
   is one, over n - 1 cables. With NCCL two ranks add in one hop, and more send all their bytes through one port; of
   one stage, sums of at most 4 MiB take the latency of our own kernel.
2. On ring and jaccl with several stages, a sum goes along the stage's line and back: 2 (n - 1) hops; one, of two ranks
   on ring with at most 16 KiB.
3. A stage's rows reach the next one in one hop, and are handed on along its line in n - 1; with NCCL they are added to
   zeros by a group of n + 1.
4. The result's columns are gathered (f32, all parts as wide as the widest), or go along the last stage's line. Of
   greedy rows only the greatest are sent; that is not counted.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact import LONGEST_BYTES
from mlxr.compiler.artifact.parallel.parallel_plan import Message
from mlxr.compiler.chips.link import Link

_BUFFERED_BYTES = 16384
"""As in `runtime/parallel/line_moves.py`: two ranks of a line swap so many bytes at once."""
_RESULT_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class MessageTimes:
    """The times of messages of a model that is split.

    Attributes:
        link: between neighbours.
        tensor: ranks of a stage.
        pipeline: stages.
        bounds: the step's result by columns, as in `RankPlan.result_bounds`.
    """

    link: Link
    tensor: int
    pipeline: int
    bounds: Sequence[int]

    def time_us(self, message: Message, rows: int) -> float:
        """The time of a message of so many rows. A receive costs nothing here: its send counts."""
        if rows == 0 or message.kind == "receive":
            return 0.0
        size_bytes = rows * message.row_bytes
        if message.kind == "all_sum":
            time = self._sum(size_bytes)
        elif message.kind == "send":
            time = self._move(size_bytes)
        else:
            time = self._gather(rows)
        handover = self.link.handover_us.value if self.link.handover_us else 0.0
        return time + handover

    @property
    def _along_a_line(self) -> bool:
        return self.pipeline > 1 and self.link.backend != "nccl"

    def _hop(self, size_bytes: float) -> float:
        return self.link.latency_us.value + size_bytes / self.link.bandwidth_gb_per_s.value / 1e3

    def _sum(self, size_bytes: int) -> float:
        ranks, backend = self.tensor, self.link.backend
        if self.link.own_sum_us is not None and self.pipeline == 1 and size_bytes <= LONGEST_BYTES:
            sent = size_bytes * (ranks - 1)
            return self.link.own_sum_us.value + sent / self.link.bandwidth_gb_per_s.value / 1e3
        if self._along_a_line:
            if ranks == 2 and backend == "ring" and size_bytes <= _BUFFERED_BYTES:
                return self._hop(size_bytes)
            return 2 * (ranks - 1) * self._hop(size_bytes)
        return self._all_gather(size_bytes, ranks)

    def _all_gather(self, size_bytes: int, ranks: int) -> float:
        """Every rank of a group gets what each of the others has."""
        if self.link.backend == "ring":
            return (ranks - 1) * self._hop(size_bytes)
        return self._hop(size_bytes * (1 if self.link.backend == "jaccl" else ranks - 1))

    def _move(self, size_bytes: int) -> float:
        if self._along_a_line:
            return self.tensor * self._hop(size_bytes)
        return self._hop(2 * size_bytes * self.tensor / (self.tensor + 1))

    def _gather(self, rows: int) -> float:
        row = rows * _RESULT_ELEMENT_BYTES
        if self._along_a_line:
            ends = [end for begin, end in itertools.pairwise(self.bounds) if end > begin]
            return sum(self._hop(row * (end - self.bounds[0])) for end in ends)
        widest = max(end - begin for begin, end in itertools.pairwise(self.bounds))
        return self._all_gather(row * widest, self.tensor + (self.pipeline > 1))
