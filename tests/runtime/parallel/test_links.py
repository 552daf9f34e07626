"""What ranks send each other arrives, and sums have the same bits on all ranks of a stage."""

import threading
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import RankPosition
from mlxr.runtime.parallel.group_moves import GroupMoves
from mlxr_tests.few import few
from mlxr_tests.ranks import run_ranks

SPLITS = [(2, 1), (2, 2), (3, 1), (1, 2), (1, 3), (4, 1), (3, 2), (2, 3)]


@pytest.mark.parametrize(("tensor", "pipeline"), few(SPLITS, [(2, 2)]))
def test_all_collectives(tensor: int, pipeline: int) -> None:
    """`links_rank` compares each with NumPy, in f32 to the bit; here, that ranks agree."""
    ranks = run_ranks(tensor * pipeline, ["-m", "mlxr_tests.links_rank", str(tensor), str(pipeline)])
    assert [rank.code for rank in ranks] == [0] * len(ranks), ranks
    assert len({rank.stdout for rank in ranks}) == pipeline
    assert [rank.stdout.split()[0] for rank in ranks] == [str(i // tensor) for i in range(len(ranks))]


class _Group:
    """Stands in for MLX's group where it can be split (NCCL, MPI): its ranks are threads."""

    def __init__(self, ranks: list[int], rank: int, shared: dict[tuple[int, ...], Any]) -> None:
        self.ranks, self.rank, self.shared = ranks, rank, shared
        self.barrier, self.slots = shared.setdefault(tuple(ranks), (threading.Barrier(len(ranks), timeout=20), {}))

    def exchange(self, value: Any) -> list[Any]:
        self.slots[self.rank] = value
        self.barrier.wait()
        values = [self.slots[rank] for rank in self.ranks]
        self.barrier.wait()
        return values

    def split(self, color: int) -> "_Group":
        colors = self.exchange(color)
        return _Group([r for r, c in zip(self.ranks, colors, strict=True) if c == color], self.rank, self.shared)


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2), (2, 3)])
def test_stages_where_groups_can_be_split(tensor: int, pipeline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with NCCL, which has no send and receive: borders between stages are groups, too."""

    def all_sum(x: mx.array, group: _Group, stream: None) -> mx.array:
        return mx.array(sum(group.exchange(np.array(x))))

    def all_gather(x: mx.array, group: _Group, stream: None) -> mx.array:
        return mx.array(np.concatenate(group.exchange(np.array(x))))

    monkeypatch.setattr(mx.distributed, "all_sum", all_sum)
    monkeypatch.setattr(mx.distributed, "all_gather", all_gather)
    shared: dict[tuple[int, ...], Any] = {}
    logits = np.arange(3 * 7, dtype=np.float32).reshape(3, 7)
    bounds = (0, 7) if tensor == 1 else (0, 5, 7)
    results: dict[int, np.ndarray[Any, Any]] = {}

    def run(rank: int) -> None:
        place = RankPosition(rank=rank, tensor=tensor, pipeline=pipeline)
        moves = GroupMoves(place, _Group(list(range(place.size)), rank, shared), None)
        rows = moves.receive((2, 3), mx.float32) + 1 if place.stage else mx.zeros((2, 3))
        if not place.in_last_stage:
            moves.send(rows)
        parts = moves.parts(rows + place.tensor_rank)
        np.testing.assert_array_equal(np.array(parts)[:, 0, 0], place.stage + np.arange(tensor))
        begin, end = bounds[place.tensor_rank], bounds[place.tensor_rank + 1]
        mine = mx.array(logits[:, begin:end]) if place.in_last_stage else None
        results[rank] = np.array(moves.gather(mine, bounds, 3, mx.float32))

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(tensor * pipeline)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert len(results) == len(ranks)
    np.testing.assert_array_equal(results[0], logits)
