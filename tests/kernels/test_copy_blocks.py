"""The copy kernel: whole blocks, every layer, K and V, from the arena or a buffer, and not a byte more."""

import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.arrays.mlx_arrays import as_bits
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr.runtime.hosts.sim.host import SimHost
from mlxr_tests.arenas import check_block_io, copy_arena, nan_arena, snapshot, write_slots
from mlxr_tests.family_specs import family_spec
from mlxr_tests.memory_weights import read_memory
from mlxr_tests.native_weights import random_native
from mlxr_tests.specs import compiled, random_weights, small_spec


def only_copies(artifact):
    """The artifact without its other kernels, which would take time to build."""
    kept = tuple(k for k in artifact.plan.first.kernels if k.label in ("copy_blocks", "copy_states"))
    plan = artifact.plan.with_program("metal", kernels=kept)
    return Artifact({**artifact.files, "plan.json": plan.model_dump_json()})


@pytest.mark.parametrize(
    ("layout", "dtype", "block_size", "head_dim"),
    [
        ("block", "f32", 4, 40),
        ("layer", "bf16", 1, 32),
        ("block", "f16", 1, 32),
        ("layer", "f32", 32, 48),
        ("block", "bf16", 16, 136),
        ("block", "q8", 1, 40),
        ("layer", "q8", 2, 56),
        ("layer", "q8", 4, 64),
    ],
)
def test_copies(layout, dtype, block_size, head_dim):
    cache = {"layout": layout, "dtype": dtype, "block_size": block_size, "max_sequences": 6, "mode": "paged"}
    artifact = only_copies(compiled(small_spec(cache=cache, model__attention__head_dim=head_dim, model__num_layers=3)))
    arena, reference_arena = (nan_arena(Arena(artifact.plan.arena)) for _ in range(2))
    geometry = artifact.plan.arena
    write_slots(arena, range(geometry.num_blocks * block_size), np.random.default_rng(0))
    copy_arena(arena, reference_arena)
    weights = random_weights(artifact.plan)
    sim, reference = SimHost(artifact, weights, arena), ReferenceHost(artifact, weights, reference_arena)
    last = geometry.num_blocks - 1
    for copies in ([(1, 0)], [(0, last), (2, 1), (last - 1, 3)]):
        before = snapshot(arena)
        sim.copy_blocks(copies)
        reference.copy_blocks(copies)
        after, want = snapshot(arena), snapshot(reference_arena)
        for name in before:
            expected = before[name].reshape(geometry.num_layers, geometry.num_blocks, -1).copy()
            for source, target in copies:
                expected[:, target] = expected[:, source]
            assert (after[name] == expected.reshape(after[name].shape)).all(), name
            assert (want[name] == after[name]).all(), f"reference: {name}"
    check_block_io(sim)
    check_block_io(reference)
    assert np.array(arena.token).tolist() == [3] * 8
    (label,) = (artifact.plan.first.kernel(kernel).label for kernel in sim.launches)
    assert label == "copy_blocks" and sim.launches.total() == 3


@pytest.mark.parametrize(("target", "layout"), [("metal", "block"), ("metal", "layer"), ("cpu", "layer")])
def test_stores_with_fewer_layers_and_states(target, layout):
    """Rows that are kept for a head are those of one layer; slots of states are written as blocks are."""
    cache = {"layout": layout, "dtype": "f32", "block_size": 2, "max_sequences": 3, "mode": "paged"}
    artifact = compiled(family_spec("ssm", cache=cache, model__mtp={}, model__num_layers=4), target=target)
    arena, reference_arena = (nan_arena(Arena(artifact.plan.arena)) for _ in range(2))
    for name, store in arena.stores.items():
        for one in (store, reference_arena.stores[name]):
            as_bits(one)[...] = np.random.default_rng(1).integers(0, 2**30, one.shape)
    if target == "cpu":
        native, weights = random_native(artifact.plan)
        tried = CpuHost(artifact, read_memory(native), arena)
    else:
        artifact, weights = only_copies(artifact), random_weights(artifact.plan)
        tried = SimHost(artifact, weights, arena)
    reference = ReferenceHost(artifact, weights, reference_arena)
    before, states = snapshot(arena), reference.read_blocks([0, 1], None)
    blocks = np.random.default_rng(0).integers(0, 256, (2, reference.block_bytes), np.uint8)
    for host in (tried, reference):
        slots = list(range(artifact.plan.arena.num_slots))
        of_all = host.read_blocks(slots, None)
        host.copy_blocks([(1, 0), (2, 4)])
        assert (host.read_blocks(slots, None) == of_all).all(), "only tiers copy states"
        host.write_blocks([3, 1], blocks)
        host.write_blocks([3, 2], states[::-1].copy(), None)
    after, want = snapshot(arena), snapshot(reference_arena)
    for name in before:
        assert (after[name] == want[name]).all() and (after[name] != before[name]).any(), name
    assert (tried.read_blocks([2, 3], None) == states).all()
    if target == "metal":
        assert {artifact.plan.first.kernel(name).label for name in tried.launches} == {"copy_blocks", "copy_states"}


def test_a_single_sequence_is_restored_too():
    host, cpu = (compiled(small_spec(cache__max_sequences=1), target=target).plan.first for target in ("metal", "cpu"))
    assert host.copy_blocks
    assert not cpu.copy_blocks, "the CPU writes blocks without a kernel, and one sequence shares none"
