"""A rank that sums through memory that cards see: `python -m mlxr_tests.peer_rank RANKS`.

It compares with NumPy, and prints a hash of all sums, which must be the same on all ranks.
"""

import hashlib
import os
import sys

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import RankPosition, mailbox_bytes
from mlxr.runtime.hosts.cuda.device import check_cuda
from mlxr.runtime.hosts.cuda.parallel.meet_peers import meet_peers
from mlxr.runtime.hosts.cuda.parallel.peer_sums import PeerSums
from mlxr.runtime.parallel.join import join
from mlxr.runtime.parallel.links import Links

DTYPES = (mx.float32, mx.bfloat16, mx.float16)
SIZES = (1, 7, 4096, 4099, 70_001, 600_000)
"""Parts of a word, of a block, of a piece; several pieces."""


def main() -> None:
    """Runs as one rank."""
    check_cuda()
    rank, ranks = int(os.environ["MLX_RANK"]), int(sys.argv[1])
    links = Links(RankPosition(rank=rank, tensor=ranks, pipeline=1), join(ranks))
    sums = PeerSums(rank, meet_peers(links.all_sum, rank, ranks, mailbox_bytes(ranks)))
    digest = hashlib.sha256()
    for size in SIZES:
        for dtype in DTYPES:
            addends = [addend(other, size, dtype) for other in range(ranks)]
            total = sums.sum(addends[rank])
            assert mx.array_equal(total, expected(addends)), (size, dtype)
            digest.update(np.array(total.astype(mx.float32)).tobytes())
    digest.update(chain(sums, rank).tobytes())
    print(digest.hexdigest())


def addend(rank: int, size: int, dtype: mx.Dtype) -> mx.array:
    """A rank's numbers, the same wherever they are made."""
    return mx.array(np.random.default_rng([rank, size]).standard_normal(size).astype(np.float32)).astype(dtype)


def expected(addends: list[mx.array]) -> mx.array:
    """Added in their order, in f32."""
    total = np.array(addends[0].astype(mx.float32))
    for one in addends[1:]:
        total = total + np.array(one.astype(mx.float32))
    return mx.array(total).astype(addends[0].dtype)


def chain(sums: PeerSums, rank: int, steps: int = 3) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """Sums of sums, in one traced graph that runs several times, each after the one before."""

    def run(x: mx.array) -> mx.array:
        latest = None
        for size in (700, 8192, 3, 8192, 100_000, 2048):
            latest = sums.sum(x[:size], latest)
            x = mx.concatenate([x[size:], 0.5 * latest])
        return x

    traced, x = mx.compile(run), addend(rank, 150_000, mx.float32)
    for _ in range(steps):
        x = traced(x)
        mx.eval(x)
    return np.array(x[-100_000:])


if __name__ == "__main__":
    main()
