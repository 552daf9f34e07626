"""Times what ranks send each other through MLX: p50 and p99 of a call, on rank 0, in microseconds.

So do the hosts that MLX runs, and sim. Programs of host cpu exchange rows by themselves: see distributed.py.

PYTHONPATH=src:tests/support python benchmarks/collectives.py --ranks 2
PYTHONPATH=src:tests/support python benchmarks/collectives.py --ranks 2 --free
mlx.launch --hostfile HOSTS -- python benchmarks/collectives.py    (on several machines)

Each rank is pinned to its share of the cores, unless --free.
"""

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import RankPlan, RankPosition
from mlxr.runtime.parallel.cores import place_threads
from mlxr.runtime.parallel.gather_result import gather_result
from mlxr.runtime.parallel.gather_result_lazily import gather_result_lazily
from mlxr.runtime.parallel.join import World, join
from mlxr.runtime.parallel.launch import read_launch
from mlxr.runtime.parallel.links import Links

WIDTH = 2048
LAYERS_SUMS = 44
TOKENS = (1, 8, 64, 512, 4096)
"""Rows of 8 KB: up to 32 MB."""


def main() -> None:
    """Starts the ranks, or runs as one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--free", action="store_true", help="do not pin threads to cores")
    options = parser.parse_args()
    launch = read_launch(os.environ)
    if launch is not None:
        run_rank(launch.size, options.free)
        return
    from mlxr_tests.ranks import run_ranks

    outputs = run_ranks(options.ranks, [__file__, *sys.argv[1:]], 600)
    print(outputs[0].stdout, *(output.stderr for output in outputs if output.code), sep="", end="")


def run_rank(size: int, free: bool) -> None:
    """Measures; all ranks do the same, and rank 0 prints."""
    world = join(size)
    cpus = None if free else place_threads(world.local_rank, world.local_size)
    rank = world.group.rank()
    tensor, pipeline = (
        RankPosition(rank=rank, tensor=size, pipeline=1),
        RankPosition(rank=rank, tensor=1, pipeline=size),
    )
    sums, stages = Links(tensor, world), Links(pipeline, world)
    say(world, f"{size} ranks by {world.backend}, " + (f"{cpus} CPUs for each" if cpus else "not pinned"))
    say(world, f"{'':44}{'p50':>10}{'p99':>10}   CPU time of rank 0")
    for tokens in TOKENS:
        x = np.ones((tokens, WIDTH), np.float32)
        out = np.empty_like(x)
        size_kb = f"{x.nbytes >> 10} KB"
        report(world, f"all_sum {size_kb}", x.nbytes, lambda x=x, out=out: sums.all_sum(x, out))
        report(world, f"  the same by MLX's all_sum {size_kb}", x.nbytes, lambda x=x, out=out: mlx_sum(world, x, out))
        report(
            world,
            f"move, one of {size} to go around {size_kb}",
            x.nbytes,
            lambda x=x, out=out: go_round(stages, x, out),
            size,
        )
        if size == 2:
            exchange = raw_exchange(world, x, out)
            report(world, f"  raw TCP, both send and receive {size_kb}", x.nbytes, exchange)
    for rows in (1, 16):
        logits = np.ones((rows, 32768 * size), np.float32)
        mine = logits[:, tensor.rank * 32768 :][:, :32768]
        bounds = tuple(32768 * rank for rank in range(size + 1))
        whole = np.empty_like(logits)
        report(
            world,
            f"gather of {rows} x {bounds[-1]} logits",
            logits.nbytes,
            lambda m=mine, b=bounds, w=whole: sums.gather(m, b, w),
        )
    results(world, sums)
    chains(world, sums)
    waiting(world, sums)


def results(world: World, links: Links) -> None:
    """The logits of a step: all, or the greatest ones of each row, found and placed, by NumPy and by MLX."""
    vocabulary, (rank, ranks) = 131072, (links.place.rank, links.place.tensor)
    bounds = tuple(vocabulary * i // ranks for i in range(ranks + 1))
    plan = RankPlan(rank=rank, tensor=ranks, pipeline=1, result_bounds=bounds)
    for rows in (1, 64):
        random = np.random.default_rng(rank)
        own = random.standard_normal((rows, bounds[rank + 1] - bounds[rank]), np.float32)
        out = np.empty((rows, vocabulary), np.float32)
        for tops in (0, 1, 40, 256):
            what = f"the {tops} greatest" if tops else "all"
            call = partial(gather_result, links, plan, own, out, tops)
            report(world, f"{rows} x {vocabulary} logits: {what}", out.nbytes, call)
            lazily = partial(gather_result_lazily, links, plan, mx.array(own), rows, tops)
            report(world, "  the same, lazily", out.nbytes, lambda lazily=lazily: mx.eval(lazily()))


def chains(world: World, links: Links) -> None:
    """The sums of a step of 22 layers, alone and with work between them."""
    x = np.ones((1, WIDTH), np.float32)
    out = np.empty_like(x)
    matrix = np.ones((512, WIDTH), np.float32)

    def sums() -> None:
        for _ in range(LAYERS_SUMS):
            links.all_sum(x, out)

    def work() -> None:
        for _ in range(LAYERS_SUMS):
            matrix @ x[0]

    def both() -> None:
        for _ in range(LAYERS_SUMS):
            matrix @ x[0]
            links.all_sum(x, out)

    for name, call in (("sums of 8 KB", sums), ("products of 4 MB", work), ("of both, in turns", both)):
        report(world, f"{LAYERS_SUMS} {name}", 44 << 13, call)


def waiting(world: World, links: Links) -> None:
    """CPU time that a rank takes while the last rank comes late to a sum, and while nothing is under way."""
    x = np.ones((1, WIDTH), np.float32)
    links.all_sum(x, x.copy())
    begin, cpu = time.perf_counter(), time.process_time()
    time.sleep(0.5)
    say(world, f"CPU time while idle: {100 * (time.process_time() - cpu) / (time.perf_counter() - begin):.0f} %")
    links.all_sum(x, x.copy())
    if world.group.rank() == world.group.size() - 1:
        time.sleep(0.5)
    begin, cpu = time.perf_counter(), time.process_time()
    links.all_sum(x, x.copy())
    share = (time.process_time() - cpu) / (time.perf_counter() - begin)
    say(world, f"CPU time while another rank is late: {100 * share:.0f} %")


def mlx_sum(world: World, x: Any, out: Any) -> None:
    """MLX's own sum, to and from NumPy."""
    stream = mx.gpu if world.backend == "nccl" else mx.cpu
    total = mx.distributed.all_sum(mx.array(x), group=world.group, stream=stream)
    mx.eval(total)
    np.copyto(out, np.array(total, copy=False))


def go_round(links: Links, x: Any, out: Any) -> None:
    """From each stage to the next one, and from the last one to rank 0."""
    if links.place.stage:
        links.receive(out)
    if not links.place.in_last_stage:
        links.send(x)
    mine = x if links.place.in_last_stage else None
    if mine is not None or links.place.rank == 0:
        links.gather(mine, (0, WIDTH), out)


def raw_exchange(world: World, x: Any, out: Any) -> Callable[[], None]:
    """Two ranks send each other x and add, through a socket of their own."""
    launch = read_launch(os.environ)
    assert launch is not None and launch.address is not None
    listener = socket.create_server(("", 0)) if world.group.rank() == 0 else None
    own = mx.array([listener.getsockname()[1] if listener else 0])
    port = int(mx.distributed.all_sum(own, group=world.group, stream=mx.cpu).item())
    if listener:
        connection, _ = listener.accept()
        listener.close()
    else:
        connection = socket.create_connection((launch.address[0], port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    received = np.empty_like(x)
    first = world.group.rank() == 0

    def receive() -> None:
        view = memoryview(received).cast("B")
        while view:
            view = view[connection.recv_into(view) :]

    def exchange() -> None:
        if x.nbytes <= 65536 or first:
            connection.sendall(x)
        receive()
        if x.nbytes > 65536 and not first:
            connection.sendall(x)
        np.add(x, received, out=out)

    return exchange


def report(world: World, name: str, num_bytes: int, call: Callable[[], None], parts: int = 1) -> None:
    """Prints a row of a call that all ranks make."""
    count = max(12, min(1000, (64 << 20) // num_bytes))
    for _ in range(max(2, count // 10)):
        call()
    times = []
    cpu = time.process_time()
    for _ in range(count):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    cpu = time.process_time() - cpu
    p50, p99 = (1e6 * np.percentile(times, percent) / parts for percent in (50, 99))
    say(world, f"{name:44}{p50:10.0f}{p99:10.0f}{1e6 * cpu / count / parts:10.0f}")


def say(world: World, text: str) -> None:
    """Prints on rank 0."""
    if world.group.rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
