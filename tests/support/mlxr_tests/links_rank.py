"""A rank that tries every collective and compares with NumPy: `python -m mlxr_tests.links_rank TENSOR PIPELINE`.

It prints a hash of all sums, which must be the same on all ranks of a stage. Of two ranks, rank 0 then notices that the
other one has ended.
"""

import ctypes
import hashlib
import os
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import RankPosition
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.exchange import Floats
from mlxr.runtime.parallel.cores import place_threads
from mlxr.runtime.parallel.join import join
from mlxr.runtime.parallel.links import Links

SHAPES = ((1, 7), (3, 2048), (257, 1100))


def main() -> None:
    """Runs as one rank."""
    tensor, pipeline = map(int, sys.argv[1:])
    place = RankPosition(rank=int(os.environ["MLX_RANK"]), tensor=tensor, pipeline=pipeline)
    world = join(place.size)
    assert (world.local_rank, world.local_size) == (place.rank, place.size)
    _check_cores(place_threads(world.local_rank, world.local_size))
    links = Links(place, world)
    sums = hashlib.sha256()
    for shape in SHAPES:
        _check_sums(links, shape, sums)
        _check_move(links, shape)
        _check_gather(links, shape[0])
    print(place.stage, sums.hexdigest())
    _check_wires(links)
    _check_gather(links, 3)  # over the sockets
    if place.size == 2 and place.rank == 0:  # the other one has ended, or will
        try:
            for _ in range(100):
                links.gather(*((None, (0, 3), np.empty((1, 3), np.float32)) if pipeline == 2 else _own_column()))
        except HostError as error:
            assert "rank 0 lost rank 1" in str(error)
        else:
            raise AssertionError("nobody is there")


def _own_column() -> tuple[Floats, tuple[int, ...], Floats]:
    return np.ones((1, 1), np.float32), (0, 1, 2), np.empty((1, 2), np.float32)


def _check_cores(count: int | None) -> None:
    """All threads run on the same CPUs, so many."""
    if count is not None:
        threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        [cpus] = {frozenset(os.sched_getaffinity(thread)) for thread in threads}
        assert len(cpus) == count


def _of_rank(rank: int, shape: tuple[int, int]) -> Floats:
    return np.random.default_rng(rank).standard_normal(shape).astype(np.float32)


def _check_sums(links: Links, shape: tuple[int, int], sums: "hashlib._Hash") -> None:
    place = links.place
    own = _of_rank(place.rank, shape)
    expected = np.zeros(shape, np.float32)
    for rank in range(place.stage * place.tensor, (place.stage + 1) * place.tensor):
        expected = expected + _of_rank(rank, shape)  # in this order, the bits are these
    out = np.empty_like(own)
    links.all_sum(own, out)
    np.testing.assert_array_equal(out, expected)
    links.all_sum(own, own)
    np.testing.assert_array_equal(own, expected)
    sums.update(out.tobytes())
    # Numbers below 8, rounded before and after each addition.
    for dtype, tolerance in ((mx.float32, 0.0), (mx.bfloat16, 0.1), (mx.float16, 0.0125)):
        lazy = links.all_sum_lazily(mx.array(_of_rank(place.rank, shape)).astype(dtype))
        assert lazy.dtype == dtype
        np.testing.assert_allclose(np.array(lazy.astype(mx.float32)), expected, rtol=0, atol=tolerance)
        sums.update(np.array(lazy.astype(mx.float32)).tobytes())


def _check_move(links: Links, shape: tuple[int, int]) -> None:
    """Each stage adds its number to the rows, in a way that shows the order."""
    place = links.place
    rows = _of_rank(100, shape)
    expected = rows
    for stage in range(1, place.stage + 1):
        expected = expected * 2 + stage
    if place.stage:
        links.receive(rows := np.empty(shape, np.float32))
        rows = rows * 2 + place.stage
    np.testing.assert_array_equal(rows, expected)
    if not place.in_last_stage:
        links.send(rows)
    lazy = mx.array(_of_rank(100, shape)).astype(mx.bfloat16)
    expected_lazy = np.array(lazy.astype(mx.float32))
    if place.stage:
        lazy = links.receive_lazily(shape, mx.bfloat16)
    if not place.in_last_stage:
        lazy = links.send_lazily(lazy)
    np.testing.assert_array_equal(np.array(lazy.astype(mx.float32)), expected_lazy)


def _bounds(place: RankPosition) -> tuple[int, ...]:
    return tuple(int(bound) for bound in np.cumsum([0, *[5, 0, 9, 2][: place.tensor]]))


def _check_gather(links: Links, rows: int) -> None:
    """Uneven columns; the second rank has none."""
    place = links.place
    bounds = _bounds(place)
    whole = _of_rank(50, (rows, bounds[-1]))
    mine = whole[:, bounds[place.tensor_rank] : bounds[place.tensor_rank + 1]] if place.in_last_stage else None
    out = np.zeros_like(whole)
    links.gather(mine, bounds, out)
    lazy = links.gather_lazily(None if mine is None else mx.array(mine), bounds, rows)
    mx.eval(lazy)
    if place.rank == 0:
        np.testing.assert_array_equal(out, whole)
        np.testing.assert_array_equal(np.array(lazy), whole)


def _check_wires(links: Links) -> None:
    """Memory that ranks of a stage share is that of the other processes; sockets lead where they should."""
    place, size = links.place, 1 << 16
    wires = links.wires(size)
    assert wires is not None
    stage = range(place.stage * place.tensor, (place.stage + 1) * place.tensor)
    beside = {place.rank - place.tensor: wires.previous, place.rank + place.tensor: wires.next}
    for rank, file in [*zip(stage, wires.sockets, strict=True), *beside.items()]:
        assert file == -1 if rank == place.rank or not 0 <= rank < place.size else wires.names[file] == rank
    for rank, file in sorted((rank, file) for file, rank in wires.names.items()):
        os.write(file, bytes([place.rank]))
        assert os.read(file, 1) == bytes([rank])
    assert len(wires.memory) == (place.tensor if place.tensor > 1 and hasattr(os, "memfd_create") else 0)
    if wires.memory:
        boards = [ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)) for address in wires.memory]
        boards[place.tensor_rank][size - 1] = 1 + place.rank
        links.all_sum(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32))  # all have written
        assert [board[size - 1] for board in boards] == [1 + rank for rank in stage]
        links.all_sum(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32))  # all have read


if __name__ == "__main__":
    main()
