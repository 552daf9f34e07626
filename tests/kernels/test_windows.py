"""Layers with a window give blocks back, and no result changes by that: not a bit."""

import numpy as np
import pytest

from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr.runtime.hosts.sim.host import SimHost
from mlxr_tests.arenas import nan_arena
from mlxr_tests.few import few
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.memory_weights import read_memory
from mlxr_tests.native_weights import random_native
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.tolerances import LOGIT_ERROR

WINDOW, CHUNK, STEPS = 40, 64, 8


def artifact_of(pattern, mode, target, max_sequences=1):
    types = {
        "windowed": {"attention": {"sliding_window": WINDOW}},
        "chunked": {"attention": {"sliding_window": WINDOW, "chunked": True}},
        "full": {},
    }
    spec = small_spec(
        model__num_layers=len(pattern),
        model__context=1024,
        model__layer_types={name: types[name] for name in types if name in pattern},
        model__layer_pattern=pattern,
        cache={"max_sequences": max_sequences, "block_size": 16, "mode": mode},
        prefill_chunk=CHUNK,
    )
    return compiled(spec, target=target)


def host_of(artifact, target):
    """A host whose arena is NaN wherever nothing was written, and the reference's weights."""
    arena = nan_arena(Arena(artifact.plan.arena))
    if target == "cpu":
        native, weights = random_native(artifact.plan)
        return CpuHost(artifact, read_memory(native), arena, threads=2), weights
    buffers, weights = random_buffers(artifact.plan)
    return SimHost(artifact, buffers, arena), weights


def run(host, length):
    """Logits of a prompt's chunks and of steps after it, and the most blocks that a group with a window used."""
    plan, pager = host.plan, Pager.from_geometry(host.arena.geometry)
    seq_id, used, logits = pager.add_sequence(), 0, []
    tokens = np.random.default_rng(3).integers(0, plan.vocab_size, length + STEPS).tolist()
    starts = [*range(0, length, CHUNK), *range(length, length + STEPS)]
    for start, stop in zip(starts, [*starts[1:], length + STEPS], strict=True):
        batch = Batch.build([BatchRequest(seq_id, tokens[start:stop], start)], pager, plan.query_tile)
        logits.append(np.array(host.read(host.step(batch))))
        pager.check_integrity()
        used = max([used, *(group.num_used for group in pager.others)])
    return np.concatenate(logits), used


def error(got, want):
    """The largest relative error of a row; angles of far positions differ by the rounding of their product."""
    return (np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)).max()


@pytest.mark.parametrize(
    ("target", "pattern", "length"),
    [
        ("cpu", ["windowed", "full"], 700),
        pytest.param("cpu", ["chunked", "full"], 500, marks=pytest.mark.long),
        pytest.param("metal", ["chunked", "full"], 330, marks=pytest.mark.long),
        pytest.param("cpu", ["windowed"], 900, marks=pytest.mark.long),
        pytest.param("metal", ["windowed", "full", "windowed"], 400, marks=pytest.mark.long),
        pytest.param("metal", ["windowed"], 330, marks=pytest.mark.long),
    ],
)
def test_what_left_the_window_is_given_back_and_never_read(target, pattern, length):
    given_back, whole = (artifact_of(pattern, mode, target) for mode in ("paged", "contiguous"))
    group = given_back.plan.arena.groups[-1]
    assert group.window == WINDOW and len(whole.plan.arena.groups) == 1
    assert group.num_blocks < given_back.plan.arena.num_blocks, "it has too few blocks for the whole context"
    host, weights = host_of(given_back, target)
    got, used = run(host, length)
    most = WINDOW + 128 + 64 + CHUNK + 32  # a tile of keys, what may be taken back, and blocks used in part
    assert 0 < 16 * used <= most < length, "the blocks do not grow with the sequence"
    np.testing.assert_array_equal(got, run(host_of(whole, target)[0], length)[0])
    want, _ = run(ReferenceHost(whole, weights, nan_arena(Arena(whole.plan.arena))), length)
    assert error(got, want) < (LOGIT_ERROR["fast"] if target == "cpu" else 1e-3)
    also, _ = run(ReferenceHost(given_back, weights, nan_arena(Arena(given_back.plan.arena))), length)
    assert error(also, want) < 1e-5


@pytest.mark.parametrize(
    ("target", "length"), few([("cpu", 2 * WINDOW + 4), ("cpu", 47), ("metal", 47)], [("cpu", 2 * WINDOW + 4)])
)
def test_others_begin_within_a_chunk(target, length):
    """A fork and a prompt whose start the arena has go on in the middle of a chunk, and over its end."""
    host, _ = host_of(artifact_of(["chunked", "full"], "paged", target, max_sequences=3), target)
    pager, rng = Pager.from_geometry(host.arena.geometry), np.random.default_rng(4)
    tokens = rng.integers(0, host.plan.vocab_size, length + WINDOW).tolist()

    def step(seq_id, upto):
        start = pager.length(seq_id)
        batch = Batch.build([BatchRequest(seq_id, tokens[start:upto], start)], pager, host.plan.query_tile)
        for group, copies in enumerate([pager.take_copies(), pager.take_copies_of(1)]):
            if copies:
                host.copy_blocks(copies, group)
        return np.array(host.read(host.step(batch)))

    first = pager.add_sequence()
    step(first, length // 2)
    step(first, length)
    hashes = BlockHashes(root_digest("test"), 16)
    pager.commit(first, tokens, hashes, length)
    fork = pager.fork(first)
    prefix = pager.find_prefix(tokens, hashes)
    assert prefix.num_tokens == length // 16 * 16
    second = pager.add_sequence(prefix)
    step(second, length)
    want = [step(first, at) for at in range(length + 1, len(tokens) + 1)]
    for other in (fork, second):
        got = [step(other, at) for at in range(length + 1, len(tokens) + 1)]
        assert error(np.concatenate(got), np.concatenate(want)) < 1e-3
