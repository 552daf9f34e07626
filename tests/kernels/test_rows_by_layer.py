"""Layers that keep different rows: their groups, where their rows are, and copies of blocks of every size."""

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import ArenaGeometry, DType
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.stores import LayerGroup, Store, StoreRow, groups_of, keys_and_values
from mlxr.compiler.schedule import memory
from mlxr.compiler.targets.metal.kernels.copy_blocks import copy_blocks_launches
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.arena_blocks import copy_blocks, read_blocks, write_blocks
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.make_requests import RequestMaker, Terms
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr.runtime.hosts.select import make_host
from mlxr.runtime.hosts.sim.host import SimHost
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.arenas import snapshot
from mlxr_tests.few import few, few_of
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.kernel_bench import run_kernel
from mlxr_tests.memory_weights import read_memory
from mlxr_tests.native_weights import random_native
from mlxr_tests.specs import small_spec
from mlxr_tests.thread_ranks import ThreadRanks, save_canonical

SMALL, WIDE = StoreRow((3,), DType.F16), StoreRow((2, 5), DType.F32)
KEYS, VALUES = StoreRow((2, 24), DType.F32), StoreRow((2, 16), DType.F32)
# Keys and values of other sizes; a store that layers 1 and 3 have in another size each, and the others not at all; and
# layer 4 has what layer 0 has.
STORES = (
    Store("k_arena", "token", (KEYS, KEYS, None, KEYS, 0, KEYS), "kv_heads"),
    Store("v_arena", "token", (VALUES, VALUES, None, VALUES, 0, VALUES), "kv_heads"),
    Store("marks", "token", (None, SMALL, None, WIDE, None, None)),
)


def geometry_of(layout, stores=STORES, block_size=2, num_blocks=6):
    groups = [LayerGroup(layers, num_blocks, num_blocks) for layers, _ in groups_of(stores, [None] * 6)]
    return ArenaGeometry(layout, "paged", block_size, 3, num_blocks * block_size, stores, tuple(groups))


def filled(geometry):
    """An arena of random bytes."""
    arena, rng = Arena(geometry), np.random.default_rng(1)
    for bits in arena.bits().values():
        bits[...] = rng.integers(0, np.iinfo(bits.dtype).max, bits.shape, bits.dtype)
    return arena


def test_layers_with_the_same_rows_are_a_group():
    arena = geometry_of("block")
    assert [group.layers for group in arena.groups] == [(0, 5), (1,), (3,)]
    assert {part.name: part.shape for part in arena.allocations} == {
        "k_arena": (6, 2, 2, 2, 24),
        "v_arena": (6, 2, 2, 2, 16),
        "k_arena.1": (6, 1, 2, 2, 24),
        "v_arena.1": (6, 1, 2, 2, 16),
        "marks.1": (6, 1, 2, 3),
        "k_arena.2": (6, 1, 2, 2, 24),
        "v_arena.2": (6, 1, 2, 2, 16),
        "marks.2": (6, 1, 2, 2, 5),
    }
    keys, _, marks = arena.stores
    assert [arena.group_of(layer) for layer in range(6)] == [0, 1, None, 2, 0, 0]
    assert arena.place(keys, 4) == arena.place(keys, 0) == ("k_arena", 0) and arena.place(keys, 5) == ("k_arena", 1)
    assert arena.place(marks, 3) == ("marks.2", 0)
    token = 4 * (2 * 24 + 2 * 16)
    assert arena.block_bytes == 2 * (4 * token + 2 * 3 + 4 * 10)


ODD = (Store("bytes", "token", (StoreRow((3,), DType.U8), *[None] * 5)), *STORES[2:])


@pytest.mark.parametrize("layout", ["block", "layer"])
@pytest.mark.parametrize(("stores", "words"), [(STORES, [16, 4, 16]), (ODD, [1, 2, 8])], ids=["keys", "odd"])
def test_metal_copies_the_rows_of_each_store(layout, stores, words):
    block_size = 1 if stores is ODD else 2
    geometry = geometry_of(layout, stores, block_size)
    launches = copy_blocks_launches(geometry)
    assert [launch.body.word_bytes for launch in launches] == words
    for group, launch in enumerate(launches):
        arena, expected = filled(geometry), filled(geometry)
        restored = np.ascontiguousarray(read_blocks(expected, [5, 2], group)[:, ::-1])
        copy_blocks(expected, [(0, 3)], group)
        write_blocks(expected, [1, 4], restored, group)
        names = {part.store.name: part.name for part in geometry.of_group(group)}
        inputs = {
            "copies": mx.array([[0, 3], [-1, 1], [-2, 4]], mx.int32),
            "blocks": mx.array(restored),
            "token": arena.token,
            **{port: arena.stores[name] for port, name in names.items()},
        }
        grid = (3, len(geometry.groups[group].layers), 1)
        outputs = run_kernel(launch.body, inputs, {"token_out": (8,)}, grid, in_place=names)
        assert outputs["token_out"].tolist() == [1] * 8
        wanted = expected.bits()
        for name, bits in arena.bits().items():
            np.testing.assert_array_equal(bits, wanted[name], name)


class Kept:
    """A host whose layers have other rows, run through a pager; the rows of a third store are written here."""

    def __init__(self, host):
        self.host, self.pager = host, Pager.from_geometry(host.plan.arena)
        self.marks = host.plan.arena.store("marks")
        self.tokens, self.hashes = {}, {}

    def add(self, tokens):
        """A sequence that begins with what it shares with others; the tokens that it has are those of the prefix."""
        hashes = BlockHashes(root_digest("x"), self.pager.block_size)
        prefix = self.pager.find_prefix(tokens, hashes)
        seq_id = self.pager.add_sequence(prefix)
        self.tokens[seq_id], self.hashes[seq_id] = list(tokens[: prefix.num_tokens]), hashes
        return seq_id

    def fork(self, seq_id):
        fork_id = self.pager.fork(seq_id)
        self.tokens[fork_id] = list(self.tokens[seq_id])
        self.hashes[fork_id] = BlockHashes(root_digest("x"), self.pager.block_size)
        return fork_id

    def free(self, seq_id):
        tokens = self.tokens.pop(seq_id)
        self.pager.free(seq_id, tokens, self.hashes.pop(seq_id), len(tokens))

    def step(self, *parts):
        requests = [BatchRequest(seq_id, tokens, len(self.tokens[seq_id])) for seq_id, tokens in parts]
        batch = Batch.build(requests, self.pager, self.host.plan.query_tile)
        self.copied = [self.pager.take_copies(), *map(self.pager.take_copies_of, (1, 2))]
        for group, copies in enumerate(self.copied):
            if copies:
                self.host.copy_blocks(copies, group)
        logits = np.array(self.host.read(self.host.step(batch)))
        for seq_id, tokens in parts:
            start = len(self.tokens[seq_id])
            self.tokens[seq_id] += tokens
            for bits, place, wanted in self.rows(seq_id, start):
                bits[place] = wanted
            self.pager.commit(seq_id, self.tokens[seq_id], self.hashes[seq_id], len(self.tokens[seq_id]))
        self.pager.check_integrity()
        for seq_id in self.tokens:
            for bits, place, wanted in self.rows(seq_id):
                assert (bits[place] == wanted).all(), f"sequence {seq_id}"
        return logits

    def rows(self, seq_id, start=0):
        """Of each token and layer: the array that has its row of the third store, the row's place, what it holds."""
        geometry, arrays = self.host.arena.geometry, self.host.arena.bits()
        for layer in range(geometry.num_layers):
            if (owner := self.marks.owner(layer)) is None:
                continue
            (name, place), group = geometry.place(self.marks, layer), geometry.group_of(layer)
            table = self.pager.block_tables([seq_id], group)[0]
            for i in range(start, len(self.tokens[seq_id])):
                block, offset = int(table[i // geometry.block_size]), i % geometry.block_size
                outer = (block, place) if geometry.layout == "block" else (place, block)
                yield arrays[name], (*outer, offset), 1000 * owner + sum(self.tokens[seq_id][: i + 1])


def model_of(target, layout, monkeypatch, shares=1, **changes):
    """A model of keys and values with a third store; layer 3 writes over what layer 1 keeps, or has its own row."""

    def stores_of(spec):
        row = StoreRow((2, 40), DType.F32)
        last = shares or row
        marks = None, SMALL, WIDE, shares
        return (*keys_and_values((row, row, row, last)), Store("marks", "token", marks))

    monkeypatch.setattr(memory, "stores_of", stores_of)
    spec = small_spec(model__num_layers=4, cache__layout=layout, **changes)
    return compile_spec(spec, targets=(target,)).artifact


def hosts_of(artifact):
    """The target's host and the reference, with the same weights."""
    plan = artifact.plan
    if plan.targets == ("cpu",):
        native, weights = random_native(plan)
        host = CpuHost(artifact, read_memory(native), Arena(plan.arena), threads=1)
    else:
        buffers, weights = random_buffers(plan)
        host = SimHost(artifact, buffers, Arena(plan.arena))
    return Kept(host), Kept(ReferenceHost(artifact, weights, Arena(plan.arena)))


def step(both, *parts):
    """Runs a step on both hosts and compares the logits; returns the copies that were made first, by group."""
    got, want = (kept.step(*parts) for kept in both)
    np.testing.assert_allclose(got, want, atol=2e-5 * float(np.abs(want).max()), rtol=0)
    return both[0].copied


@pytest.mark.parametrize(("target", "layout"), few_of(["metal", "cpu"], ["block", "layer"]))
def test_a_model_forks_copies_and_finds_prefixes(target, layout, monkeypatch):
    artifact = model_of(target, layout, monkeypatch, cache__num_blocks=24)
    assert [group.layers for group in artifact.plan.arena.groups] == [(0,), (1,), (2,)]
    both = hosts_of(artifact)
    prompt = [5, 60, 7, 8, 9, 11]
    first, _ = (kept.add(prompt) for kept in both)
    step(both, (first, prompt))
    second, _ = (kept.fork(first) for kept in both)
    copied = step(both, (first, [33]), (second, [34, 35, 36]))
    assert [len(copies) for copies in copied] == [1, 1, 1], "of the block that both use in part, in each group"
    step(both, (first, [1]), (second, [2]))
    for kept in both:
        kept.free(second)
    third, _ = (kept.add([*prompt, 34, 35, 36, 2, 3]) for kept in both)
    assert len(both[0].tokens[third]) == 8, "whole blocks that all groups have"
    step(both, (third, [36, 2, 3]), (first, [4]))
    arena = both[0].host.arena
    before, own = snapshot(arena), {part.name for part in arena.geometry.of_group(1)}
    both[0].host.copy_blocks([(0, 5), (1, 6)], 1)
    mx.eval(arena.token)
    after = snapshot(arena)
    assert {name for name in before if (after[name] != before[name]).any()} == own, "copies are of one group"


@pytest.mark.parametrize("target", ["metal", "cpu"])
def test_a_contiguous_arena_holds_every_group_in_order(target, monkeypatch):
    """Its kernels have no block table: block i of the sequence is block i of each group, whatever was there before."""
    both = hosts_of(model_of(target, "block", monkeypatch, cache__max_sequences=1, cache__mode="contiguous"))
    prompts = [5, 60, 7, 8, 9, 11], [3, 1, 4, 1, 5, 9, 2, 6, 5], [3, 1, 4, 1, 5, 9, 2, 6, 7]
    for prompt, cached in zip(prompts, (0, 0, 8), strict=True):
        seq_ids = [kept.add(prompt) for kept in both]
        assert len(both[0].tokens[seq_ids[0]]) == cached
        step(both, (seq_ids[0], prompt[cached:]))
        step(both, (seq_ids[0], [33]))
        for group in (1, 2):
            table = both[0].pager.block_tables(seq_ids[:1], group)[0]
            assert table.tolist() == list(range(len(table)))
        for kept in both:
            kept.free(seq_ids[0])


@pytest.mark.parametrize("parallel", few([{"tensor": 2}, {"pipeline": 2}], [{"tensor": 2}]), ids=str)
def test_ranks_have_every_group(parallel, monkeypatch, tmp_path):
    changes = {"cache__num_blocks": 24, "model__tensor_names": "canonical"}
    whole = model_of("cpu", "block", monkeypatch, shares=None, **changes)
    file = open_weights(save_canonical(tmp_path, whole))
    split = model_of("cpu", "block", monkeypatch, shares=None, parallel=parallel, **changes)
    ranks = ThreadRanks(split, file)
    host = make_host("reference", whole, file, Arena(whole.plan.arena), threads=None, progress=None)
    pager = Pager.from_geometry(whole.plan.arena)

    def both(*parts):
        got = ranks.feed(*parts)
        requests = [BatchRequest(seq_id, tokens, pager.length(seq_id), "all") for seq_id, tokens in parts]
        want = np.array(launch_step(host, pager, requests))
        np.testing.assert_allclose(got, want, atol=2e-5 * float(np.abs(want).max()), rtol=0)

    first, _ = (each.add_sequence() for each in (pager, ranks.pager))
    both((first, [5, 60, 7, 8, 9, 11]))
    second, _ = (each.fork(first) for each in (pager, ranks.pager))
    both((first, [33]), (second, [34, 35, 36]))
    both((first, [1]), (second, [2]))


def test_stages_share_no_rows(monkeypatch):
    """Layer 3 reads what layer 1 keeps."""
    with pytest.raises(PlanError, match="layer 3 shares the rows of layer 1, which an earlier stage has"):
        model_of("cpu", "block", monkeypatch, parallel={"pipeline": 2})
    arena = model_of("cpu", "block", monkeypatch, parallel={"tensor": 2}).of_rank(1).plan.arena
    assert arena.stores[0].rows == (*[StoreRow((1, 40), DType.F32)] * 3, 1)


ASKED = Sampling(max_tokens=12, ignore_eos=True, logprobs=1)


def test_an_engine_whose_groups_are_short_of_blocks(monkeypatch):
    """Requests are preempted and begin again; what they answer is what they answer alone."""
    exact = {"compute": "exact", "deterministic": True, "cache__max_sequences": 4}

    def answers(num_blocks, *prompts):
        artifact = model_of("cpu", "block", monkeypatch, shares=None, cache__num_blocks=num_blocks, **exact)
        host = CpuHost(artifact, read_memory(random_native(artifact.plan)[0]), Arena(artifact.plan.arena), threads=1)
        pager = Pager.from_geometry(artifact.plan.arena)
        core, maker = EngineCore(host, pager), RequestMaker(artifact.plan, artifact.plan.arena, None, ("toy", "f32"))
        requests = []
        for prompt in prompts * 3:
            requests += maker.make(0, prompt, ASKED, lambda news: None, 0.0, Terms())
            core.add(requests[-1])
        while core.step():
            pager.check_integrity()
        told = [request.answer.completion for request in requests]
        return [(answer.token_ids, answer.logprobs) for answer in told], core.stats()

    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9, *range(20, 20 + i)] for i in (1, 3, 1, 6)]
    alone = [answers(40, prompt)[0][0] for prompt in prompts]
    together, stats = answers(11, *prompts)
    assert together == alone * 3 and stats.preemptions, "or else it shows little"
