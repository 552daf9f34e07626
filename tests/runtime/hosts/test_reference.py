"""The reference host: which graph it runs, on which weights, and what it does to the arena."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr_tests.specs import compiled, floats, random_weights, small_spec
from mlxr_tests.tolerances import check_logits

Floats = npt.NDArray[np.floating]
Graph = Literal["source", "decode", "prefill"]
LOGITS = 61


class Rig:
    """An artifact with its arena and pager, and one host for each graph that a test asks for."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.weights = random_weights(artifact.plan)
        self.arena = Arena(artifact.plan.arena)
        self.pager = Pager.from_geometry(artifact.plan.arena)
        self.hosts: dict[str, ReferenceHost] = {}

    def host(self, graph: Graph) -> ReferenceHost:
        if graph not in self.hosts:
            self.hosts[graph] = ReferenceHost(self.artifact, self.weights, self.arena, graph)
        return self.hosts[graph]

    def step(self, graph: Graph, *parts: tuple[int, Sequence[int]], rows: Any = "last") -> Floats:
        plan = self.artifact.plan
        requests = [BatchRequest(seq, tokens, self.pager.length(seq), rows) for seq, tokens in parts]
        batch = Batch.build(requests, self.pager, plan.query_tile)
        host = self.host(graph)
        copies = self.pager.take_copies()
        if copies:
            host.copy_blocks(copies)
        return floats(host.step(batch))


def rig(**changes: Any) -> Rig:
    return Rig(compiled(small_spec(**changes)))


PROMPT = [5, 60, 7, 8, 1, 0, 33]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cache": {"layout": "layer", "dtype": "f32", "block_size": 8, "max_sequences": 3}},
        {"model__attention__sliding_window": 3, "model__tie_embeddings": True},
        {"model__attention__qkv_bias": True, "model__mlp__bias": True},
    ],
    ids=["plain", "layer-major", "window and tied", "biases"],
)
def test_all_graphs_give_the_same_logits(changes: dict[str, Any]) -> None:
    want, got = rig(**changes), rig(**changes)
    for r in (want, got):
        assert (r.pager.add_sequence(), r.pager.add_sequence()) == (0, 1)
    steps: list[tuple[Graph, list[tuple[int, list[int]]]]] = [
        ("prefill", [(0, PROMPT), (1, [9, 9, 2])]),
        ("prefill", [(1, [4]), (0, [3, 2, 1])]),
        ("decode", [(0, [11]), (1, [12])]),
        ("decode", [(1, [13])]),
    ]
    for number, (graph, parts) in enumerate(steps):
        expected = want.step("source", *parts)
        assert expected.shape == (len(parts), LOGITS)
        check_logits(f"step {number}", got.step(graph, *parts), expected, "f32")


def test_launches_count_kinds_of_ops() -> None:
    r = rig()
    seq = r.pager.add_sequence()
    for graph in ("source", "prefill", "decode"):
        r.step(graph, (seq, [1]))
    for graph, host in r.hosts.items():
        assert host.launches == Counter(op.kind for op in r.artifact.graph(graph).ops)
    r.step("decode", (seq, [1]))
    assert r.hosts["decode"].launches["rope_write_attention"] == 2 * 2


def test_the_decode_graph_takes_no_prompts() -> None:
    r = rig()
    seq = r.pager.add_sequence()
    with pytest.raises(HostError, match="the decode graph takes one token a sequence, got 7 tokens of 1 sequences"):
        r.step("decode", (seq, PROMPT))


def test_rows_are_those_asked_for() -> None:
    r, other = rig(), rig()
    for one in (r, other):
        one.pager.add_sequence()
    everything = r.step("source", (0, PROMPT), rows="all")
    assert everything.shape == (7, LOGITS)
    check_logits("last", other.step("source", (0, PROMPT)), everything[-1:], "f32")
    assert r.step("source", (0, [1]), rows="none").shape == (0, LOGITS)
    assert r.step("prefill", (0, [1]), rows="none").shape == (0, LOGITS)
    # What a step without logits wrote is there for the next.
    other.step("source", (0, [1, 1]))
    check_logits("after", r.step("source", (0, [2])), other.step("source", (0, [2])), "f32")


def test_logits_are_fp32_and_evaluated_whatever_the_activations_are() -> None:
    r = rig(activation_dtype="bf16", weights={"default": "bf16"}, cache__dtype="bf16")
    seq = r.pager.add_sequence()
    batch = Batch.build([BatchRequest(seq, PROMPT, 0)], r.pager, 4)
    logits = r.host("source").step(batch)
    assert logits.dtype == mx.float32 and logits.shape == (1, LOGITS)


def test_chunks_and_batches_do_not_matter() -> None:
    whole, chunked = rig(), rig()
    for r in (whole, chunked):
        r.pager.add_sequence()
    want = whole.step("source", (0, PROMPT), rows="all")
    other = chunked.pager.add_sequence()
    got = [
        chunked.step("source", (other, [50, 51]), (0, PROMPT[:3]), rows="all")[2:],
        chunked.step("source", (0, PROMPT[3:4]), (other, [52]), rows="all")[:1],
        chunked.step("source", (0, PROMPT[4:]), rows="all"),
    ]
    check_logits("chunks", np.concatenate(got), want, "f32")


def test_steps_write_in_place_and_touch_only_their_slots() -> None:
    r = rig()
    r.pager.add_sequence()
    k, v, addresses = r.arena.stores["k_arena"], r.arena.stores["v_arena"], r.arena.addresses()
    for graph in ("source", "prefill", "decode"):
        r.step(graph, (0, [1]))
    assert r.arena.stores["k_arena"] is k and r.arena.stores["v_arena"] is v and r.arena.addresses() == addresses
    (block_id,) = r.pager.block_table(0)
    written = np.abs(floats(k)).sum(axis=(-1, -2))
    assert (written[block_id, :, :3] > 0).all()
    written[block_id, :, :3] = 0
    assert not written.any()


@pytest.mark.parametrize("layout", ["block", "layer"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_fork_goes_its_own_way(layout: str, dtype: str) -> None:
    r, alone = rig(cache__layout=layout, cache__dtype=dtype), rig(cache__layout=layout, cache__dtype=dtype)
    r.pager.add_sequence()
    r.step("source", (0, PROMPT[:6]))
    fork = r.pager.fork(0)
    # Both grow inside the shared last block, the fork first.
    ours = r.step("source", (fork, [40]), (0, [41]))
    ours = np.concatenate([ours, r.step("source", (fork, [42]), (0, [42]))])
    for number, last in enumerate((40, 41)):
        seq = alone.pager.add_sequence()
        alone.step("source", (seq, PROMPT[:6]))
        want = np.concatenate([alone.step("source", (seq, [last])), alone.step("source", (seq, [42]))])
        check_logits(f"sequence {number}", ours[number::2], want, "f32")
    assert np.abs(ours[0] - ours[1]).max() > 0.01, "the two sequences are the same"


def test_two_hosts_may_share_an_arena() -> None:
    r, alone = rig(), rig()
    for one in (r, alone):
        one.pager.add_sequence()
    r.step("prefill", (0, PROMPT))
    alone.step("source", (0, PROMPT))
    for graph in ("source", "decode", "source"):
        check_logits(graph, r.step(graph, (0, [3])), alone.step("source", (0, [3])), "f32")


def test_contiguous_mode_is_paged_mode_with_an_identity_table() -> None:
    cache = {"dtype": "f32", "block_size": 4, "max_sequences": 1}
    paged, contiguous = (rig(cache=cache | {"mode": mode}) for mode in ("paged", "contiguous"))
    for r in (paged, contiguous):
        r.pager.add_sequence()
    steps: list[tuple[Graph, list[int]]] = [("source", PROMPT), ("prefill", [1, 2]), ("decode", [3])]
    for graph, tokens in steps:
        want = paged.step(graph, (0, tokens))
        np.testing.assert_array_equal(contiguous.step(graph, (0, tokens)), want)


def test_the_source_graph_reads_the_parts_of_packed_weights() -> None:
    r = rig(model__attention__qkv_bias=True)
    source = r.host("source")
    bound = {v.name: v for v in source.graph.values if v.role == "weight"}
    assert source.bound.keys() == bound.keys()
    for name, value in bound.items():
        assert source.bound[name].shape == value.shape
    packed = floats(r.weights["layers.1.attention.qkv"])
    for part, rows in (("q", slice(0, 240)), ("k", slice(240, 320)), ("v", slice(320, 400))):
        np.testing.assert_array_equal(floats(source.bound[f"layers.1.attention.{part}"]), packed[rows])
    biases = floats(r.weights["layers.0.attention.qkv_bias"])
    np.testing.assert_array_equal(floats(source.bound["layers.0.attention.k_bias"]), biases[240:320])
