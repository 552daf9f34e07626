"""A program that runs 200 queued steps over a large arena and prints the memory that they took, as JSON.

    python -m mlxr_tests.arena_steps HOST [--copy]

It is a separate process, because the system reports the largest resident size of a process's whole life. `--copy` makes
a NumPy copy of K on the way, to show that the figures would reveal it.
"""

import gc
import json
import resource
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr_tests.storyteller import Q8_0, storyteller_spec

NUM_STEPS = 200


def peak_rss_bytes() -> int:
    """The largest resident size of this process so far."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Not ru_maxrss, which begins at the size of the process that started this one.
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def rss_bytes() -> int:
    """The resident size of this process now; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.is_file() else 0


def measure(host: str, make_copy: bool) -> dict[str, int | bool]:
    """Runs the steps and returns the figures."""
    # An arena of 384 MiB: far larger than everything else together.
    before = rss_bytes()
    target = "cpu" if host == "cpu" else "metal"
    artifact = compile_spec(storyteller_spec(cache={"num_blocks": 4096}), targets=(target,)).artifact
    model = mlxr.load(artifact, Q8_0, host=host)
    arena, plan, pager = model.arena, model.artifact.plan, model.pager
    seq_id = pager.add_sequence()
    model.host.read(model.host.step(Batch.build([BatchRequest(seq_id, [1, 403, 27], 0)], pager, plan.query_tile)))
    mx.eval(arena.token)
    loaded = rss_bytes() - before
    for bits in arena.bits().values():
        bits[...] |= 0  # pages that were never written are not resident
    addresses, token, launched = arena.addresses(), int(arena.token[0]), sum(model.host.launches.values())
    gc.collect()
    mx.clear_cache()
    mx.reset_peak_memory()
    active, rss = mx.get_active_memory(), peak_rss_bytes()
    # Steps are queued without reading their results, so on a lazy host all of them are in flight.
    queued = [
        model.host.step(Batch.build([BatchRequest(seq_id, [i % 4000], 3 + i)], pager, plan.query_tile))
        for i in range(NUM_STEPS)
    ]
    copy = np.array(arena.bits()["k_arena"]) if make_copy else None
    mx.eval(arena.token)
    del copy, queued
    return {
        "arena_bytes": arena.geometry.size_bytes,
        "num_layers": plan.num_layers,
        "rss_of_one_step_bytes": loaded,
        "mlx_growth_bytes": mx.get_peak_memory() - active,
        "rss_growth_bytes": peak_rss_bytes() - rss,
        "is_in_place": arena.addresses() == addresses,
        "accesses": int(arena.token[0]) - token,
        "launches": sum(model.host.launches.values()) - launched,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], "--copy" in sys.argv[2:])))
