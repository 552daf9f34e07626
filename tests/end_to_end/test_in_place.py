"""The arena is written where it lies: no copy of it is ever made."""

import gc
import resource
import sys
from collections.abc import Callable

import mlx.core as mx

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.runtime.batch import Batch, BatchRequest
from mlxr_tests.storyteller import Q8_0, storyteller_spec


def big_arena() -> mlxr.ModelSpec:
    """Storyteller with an arena of 384 MiB, far more than everything else together."""
    return storyteller_spec(cache={"num_blocks": 4096})


def peak_rss_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_200_queued_steps_make_no_copy_of_the_arena() -> None:
    model = mlxr.load(compile_spec(big_arena()).artifact, Q8_0)
    arena, plan, pager = model.arena, model.artifact.plan, model.pager
    assert arena.geometry.size_bytes == 384 * 2**20
    addresses = arena.addresses()
    seq_id = pager.add_sequence()
    model.host.step(Batch.build([BatchRequest(seq_id, [1, 403, 27], 0)], pager, plan.query_tile, plan.partition))
    mx.synchronize()
    gc.collect()
    mx.clear_cache()
    mx.reset_peak_memory()
    before, rss = mx.get_active_memory(), peak_rss_bytes()
    # Steps are queued without reading their results: on a lazy host all of them are in flight.
    queued = [
        model.host.step(Batch.build([BatchRequest(seq_id, [i % 4000], 3 + i)], pager, plan.query_tile, plan.partition))
        for i in range(200)
    ]
    mx.eval(queued, arena.token)
    one_copy = arena.geometry.size_bytes // 2
    assert mx.get_peak_memory() - before < one_copy // 4
    assert peak_rss_bytes() - rss < one_copy // 4
    assert arena.addresses() == addresses
    accesses = 2 * plan.num_layers + 200 * plan.num_layers
    assert int(arena.token[0]) == accesses, "each access of the arena adds one to its token"


def test_a_copy_would_be_noticed(storyteller: Callable[[str, str], mlxr.Model]) -> None:
    """The measure of the test above, shown to see what it should see."""
    arena = storyteller("sim", "q8_0").arena
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    copy = arena.k + 0
    mx.eval(copy)
    assert mx.get_peak_memory() - before >= arena.geometry.size_bytes // 2
