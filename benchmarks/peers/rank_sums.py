"""A rank that times sums on the device, through MLX and by the kernel over peer memory: `rank_sums.py RANKS`.

Each row: a sum that is awaited, the median and the longest; and one of 64 in a traced graph, each of which needs the
one before.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable

import mlx.core as mx

from mlxr.compiler.artifact import RankPosition, mailbox_bytes
from mlxr.runtime.hosts.cuda.device import check_cuda
from mlxr.runtime.hosts.cuda.parallel.meet_peers import NoPeersError, meet_peers
from mlxr.runtime.hosts.cuda.parallel.peer_sums import PeerSums
from mlxr.runtime.parallel.join import join
from mlxr.runtime.parallel.links import Links

CHAIN = 64
check_cuda()
rank, ranks = int(os.environ["MLX_RANK"]), int(sys.argv[1])
world = join(ranks)
links = Links(RankPosition(rank=rank, tensor=ranks, pipeline=1), world)
ways: dict[str, Callable[[mx.array], mx.array]] = {f"MLX, {world.backend}": links.all_sum_lazy}
try:
    ways["peer memory"] = PeerSums(rank, meet_peers(links.all_sum, rank, ranks, mailbox_bytes(ranks))).sum
except NoPeersError as error:
    print(f"no peer memory: {error}")
for size in (4096, 65536, 1 << 20, 1 << 22, 1 << 24):
    for name, way in ways.items():
        x = mx.zeros((1, size), mx.bfloat16)
        mx.eval(x)
        times = []
        for _ in range(20 if size > 1 << 20 else 60):
            begin = time.perf_counter()
            mx.eval(way(x))
            times.append(1e6 * (time.perf_counter() - begin))

        def chain(x: mx.array, way: Callable[[mx.array], mx.array] = way) -> mx.array:
            """Sums of sums."""
            for _ in range(CHAIN):
                x = way(x)
            return x

        traced, chained = mx.compile(chain), []
        for _ in range(6):
            begin = time.perf_counter()
            mx.eval(traced(x))
            chained.append(1e6 * (time.perf_counter() - begin) / CHAIN)
        median, most = statistics.median(times), max(times)
        if rank == 0:
            in_chain = statistics.median(chained[2:])
            print(f"{size >> 9:6} KB {name:14} awaited {median:8.0f} us, most {most:8.0f}; in a chain {in_chain:8.1f}")
