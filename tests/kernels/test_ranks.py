"""Whole models on the ranks of a split: the C and the Metal programs of all ranks against the reference of the whole.

Ranks are threads here, each with its own program, weights and arena; see `thread_ranks`.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.parallel import Parallel
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cpu import host as cpu_host
from mlxr.runtime.hosts.cpu.parallel import batch_halves
from mlxr.runtime.hosts.exchange import Floats
from mlxr.runtime.hosts.select import make_host
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.few import few
from mlxr_tests.specs import small_spec
from mlxr_tests.thread_ranks import ThreadRanks, Transport, save_canonical

SPLITS: dict[str, dict[str, Any]] = {
    "tensor 2": {"tensor": 2},
    "2 stages": {"pipeline": 2},
    "2 x 2": {"tensor": 2, "pipeline": 2},
}
EXACT = {"model__tensor_names": "canonical", "compute": "exact"}


def steps(step: Callable[[Batch], Floats], pager: Pager, query_tile: int) -> Iterator[Floats]:
    """Logits of prompts in one chunk and in several, of decode steps, a mixed step and a fork."""

    def feed(*parts: tuple[int, list[int]]) -> Floats:
        requests = [BatchRequest(seq, tokens, pager.length(seq), "all") for seq, tokens in parts]
        return step(Batch.build(requests, pager, query_tile)).copy()

    a, b = pager.add_sequence(), pager.add_sequence()
    yield feed((a, [3, 1, 4, 1, 5, 9, 2, 6, 5]))
    yield feed((a, [3]))
    yield feed((b, [7, 8, 50, 60]))
    c = pager.fork(a)
    yield feed((c, [11]), (a, [9]), (b, [10]))
    yield feed((a, [9, 7, 9, 3]), (b, [1]))


def prompts(step: Callable[[Batch], Floats], pager: Pager, query_tile: int) -> Iterator[Floats]:
    """The last logits of sequences in steps that can be two batches: tokens before, within and after the longest."""
    a, b = pager.add_sequence(), pager.add_sequence()
    for of_a, of_b in (([3, 1, 4, 1, 5, 9, 2, 6] * 3, []), ([5], [7, 8, 50, 60, 3]), ([8, 9, 7, 9, 3, 2], [1])):
        parts = [BatchRequest(seq, ids, pager.length(seq)) for seq, ids in ((a, of_a), (b, of_b)) if ids]
        yield step(Batch.build(parts, pager, query_tile)).copy()


def logits_of_whole(
    spec: ModelSpec, folder: Path, steps: Callable[..., Iterator[Floats]] = steps
) -> tuple[Path, list[Floats]]:
    """A file of random weights, and what the reference gives."""
    artifact = compile_spec(spec, targets=["cpu"]).artifact
    path = save_canonical(folder, artifact)
    plan = artifact.plan
    host = make_host("reference", artifact, open_weights(path), Arena(plan.arena), threads=None, progress=None)
    pager = Pager.from_geometry(plan.arena)

    def step(batch: Batch) -> Floats:
        groups = range(1, len(plan.arena.groups))
        for group, copies in enumerate((pager.take_copies(), *map(pager.take_copies_of, groups))):
            if copies:
                host.copy_blocks(copies, group)
        return np.asarray(host.read(host.step(batch)))

    return path, list(steps(step, pager, plan.query_tile))


def split(spec: ModelSpec, host: str, **parallel: Any) -> Artifact:
    changes = {"parallel": Parallel(**parallel)}
    return compile_spec(spec.model_copy(update=changes), targets=["metal" if host == "sim" else "cpu"]).artifact


def check(
    spec: ModelSpec, host: str, folder: Path, *splits: dict[str, Any], transport: Transport = "memory", threads: int = 1
) -> list[ThreadRanks]:
    path, expected = logits_of_whole(spec, folder)
    every = []
    for parallel in splits:
        ranks = ThreadRanks(split(spec, host, **parallel), open_weights(path), host, transport, threads)
        for got, wanted in zip(steps(ranks.step, ranks.pager, ranks.plan.query_tile), expected, strict=True):
            np.testing.assert_allclose(got, wanted, atol=2e-5 * float(np.abs(wanted).max()), rtol=0)
        every.append(ranks)
    return every


ON_CPU = itertools.product(ALL_SPECS, SPLITS)
SHORT_ON_CPU = [("gpt-oss-like", "2 x 2")]


@pytest.mark.parametrize(("name", "parallel"), few(ON_CPU, SHORT_ON_CPU))
def test_families_on_cpu(name: str, parallel: str, tmp_path: Path) -> None:
    check(family_spec(name, **EXACT), "cpu", tmp_path, SPLITS[parallel])


@pytest.mark.long
@pytest.mark.parametrize("name", few(ALL_SPECS, ["deepseek-like"]))
def test_families_on_sim(name: str, tmp_path: Path) -> None:
    check(family_spec(name, **EXACT), "sim", tmp_path, SPLITS["2 x 2"])


STATES = {
    "heads that are normalised together": ("ssm", {"num_heads": 6, "head_dim": 24, "num_groups": 1, "state_dim": 20}),
    "values apart from their keys": (
        "delta",
        {"num_heads": 6, "num_key_heads": 2, "key_dim": 24, "value_dim": 16, "taps": 3},
    ),
}


@pytest.mark.parametrize(
    ("case", "host"), few(itertools.product(STATES, ["cpu", "sim"]), [(case, "cpu") for case in list(STATES)[:1]])
)
def test_heads_of_recurrent_blocks(case: str, host: str, tmp_path: Path) -> None:
    kind, sizes = STATES[case]
    recurrent = {"kind": kind, **sizes} | ({"tiled": True} if kind == "delta" else {})
    check(family_spec(kind, **EXACT, model__recurrent=recurrent), host, tmp_path, {"tensor": 2})


HEADS: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[int, int]]]] = {
    "3 KV heads on 2 ranks": ({"num_heads": 9, "num_kv_heads": 3, "head_dim": 40}, {"tensor": 2}, [(6, 2), (3, 1)]),
    "1 KV head on 2 ranks": (
        {"num_heads": 5, "num_kv_heads": 1, "head_dim": 40, "qk_norm": {"scope": "head"}},
        {"tensor": 2},
        [(2, 1), (3, 1)],
    ),
    "2 KV heads on 3 ranks": ({"num_heads": 8, "num_kv_heads": 2, "head_dim": 32}, {"tensor": 3}, []),
    "2 KV heads on 3 ranks, normalised together": (
        {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32, "qk_norm": {"scope": "all"}},
        {"tensor": 3},
        [(2, 1), (2, 1), (4, 1)],
    ),
    "shares": (
        {"num_heads": 10, "num_kv_heads": 5, "head_dim": 40},
        {"tensor": 2, "shares": (0.6, 0.4)},
        [(6, 3), (4, 2)],
    ),
}


@pytest.mark.parametrize("case", few(HEADS, ["1 KV head on 2 ranks"]))
def test_heads(case: str, tmp_path: Path) -> None:
    attention, parallel, expected = HEADS[case]
    spec = small_spec(model__attention=attention, **EXACT)
    (ranks,) = check(spec, "cpu", tmp_path, parallel)
    attends = [op.attrs for part in ranks.artifacts for op in part.graph("source").ops if op.kind == "attention"]
    heads = [(attrs.attributes["num_heads"], attrs.attributes["num_kv_heads"]) for attrs in attends[::2]]
    assert sum(queries for queries, _ in heads) == attention["num_heads"]
    assert not expected or heads == expected


@pytest.mark.long
def test_three_uneven_stages(tmp_path: Path) -> None:
    """Each stage has its layers alone, in its arena too; every collective is a launch that its program counts."""
    spec = small_spec(model__num_layers=6, **EXACT)
    (ranks,) = check(spec, "cpu", tmp_path, {"pipeline": 3, "layers": (3, 1, 2)}, transport="calls")
    assert [arena.geometry.num_layers for arena in ranks.arenas] == [3, 1, 2]
    weights = [{part.name for weight in part.plan.weights for part in weight.parts} for part in ranks.artifacts]
    layers = [sorted({name.split(".")[1] for name in names if name.startswith("layers.")}) for names in weights]
    assert layers == [["0", "1", "2"], ["3"], ["4", "5"]]
    assert ["embedding" in names for names in weights] == [True, False, False]
    assert ["output" in names for names in weights] == [False, False, True]
    for host, collectives in zip(ranks.hosts, ranks.collectives, strict=True):
        labels = {kernel.name: kernel.label for kernel in host.program.kernels}
        launched = {labels[name]: count for name, count in host.launches.items()}
        for kind in ("send", "receive", "gather"):
            assert launched.get(kind, 0) == collectives.calls.count(kind)
    assert [collectives.calls.count("send") for collectives in ranks.collectives] == [5, 5, 0]


@pytest.mark.parametrize(
    ("transport", "parallel", "threads"),
    [
        pytest.param("memory", {"tensor": 3}, 2, marks=pytest.mark.long),
        pytest.param("sockets", {"tensor": 2}, 1, marks=pytest.mark.long),
        pytest.param("sockets", {"tensor": 3}, 1, marks=pytest.mark.long),
        ("sockets", {"tensor": 2, "pipeline": 2}, 2),
        pytest.param("calls", {"tensor": 2, "pipeline": 2}, 1, marks=pytest.mark.long),
    ],
)
def test_programs_exchange_by_themselves(
    transport: Transport, parallel: dict[str, Any], threads: int, tmp_path: Path
) -> None:
    """Rows of 4 KB, so that the sums of 9 tokens are long and those of other steps short."""
    spec = small_spec(model__hidden_size=1024, **EXACT)
    (ranks,) = check(spec, "cpu", tmp_path, parallel, transport=transport, threads=threads)
    for host, collectives in zip(ranks.hosts, ranks.collectives, strict=True):
        labels = {kernel.name: kernel.label for kernel in host.program.kernels}
        sums = sum(count for name, count in host.launches.items() if labels[name] == "all_sum")
        assert sums >= 5 * 2, "each of 5 steps has some"
        assert collectives.calls.count("all_sum") == (sums if transport == "calls" else 0)
    assert len({host._overlaps_from for host in ranks.hosts if isinstance(host, cpu_host.CpuHost)}) == 1


BESIDE = [
    # Sums of 12 tokens are long, those of 6 short.
    pytest.param("plain", {"model__hidden_size": 1024}, {"tensor": 3}, 2, marks=pytest.mark.long),
    ("olmo-like", {"output": "hidden"}, {"tensor": 2}, 1),
]


def overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has steps of two tokens run as two batches."""
    monkeypatch.setattr(cpu_host, "fewest_tokens", lambda *_: 2)
    monkeypatch.setattr(batch_halves, "_FEWEST_TOKENS", 1)
    monkeypatch.setattr(batch_halves, "_MULTIPLE_OF", 1)


@pytest.mark.parametrize(("name", "changes", "parallel", "threads"), BESIDE)
def test_a_sum_beside_the_compute_of_another_batch(
    name: str,
    changes: dict[str, Any],
    parallel: dict[str, Any],
    threads: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overlap(monkeypatch)
    spec = family_spec(name, **changes, **EXACT)
    path, expected = logits_of_whole(spec, tmp_path, prompts)
    ranks = ThreadRanks(split(spec, "cpu", **parallel), open_weights(path), "cpu", "sockets", threads)
    for got, wanted in zip(prompts(ranks.step, ranks.pager, ranks.plan.query_tile), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5 * float(np.abs(wanted).max()), rtol=0)
    phase = ranks.plan.program("cpu").phase("prefill")
    labels = {kernel.name: kernel.label for kernel in ranks.hosts[0].program.kernels}
    sums = sum(labels[launch.kernel] == "all_sum" for launch in phase.launches)
    launched = sum(count for kernel, count in ranks.hosts[0].launches.items() if labels[kernel] == "all_sum")
    assert launched == 2 * sums * len(expected)
    exchanges = [host._exchange for host in ranks.hosts if isinstance(host, cpu_host.CpuHost)]
    assert all(exchange is not None and exchange.links.bytes_beside_compute for exchange in exchanges)


def ranks_without_the_second(folder: Path, transport: Transport = "sockets") -> ThreadRanks:
    spec = small_spec(**EXACT)
    path = save_canonical(folder, compile_spec(spec, targets=["cpu"]).artifact)
    ranks = ThreadRanks(split(spec, "cpu", tensor=2), open_weights(path), transport=transport)
    ranks.collectives[0].meeting.sockets[1, 0].close()
    return ranks


@pytest.mark.parametrize("transport", ["memory", "sockets"])
def test_a_rank_that_ends(transport: Transport, tmp_path: Path) -> None:
    """The others' step ends, and says which rank is lost."""
    ranks = ranks_without_the_second(tmp_path, transport)
    request = BatchRequest(ranks.pager.add_sequence(), [3, 1, 4], 0, "none")
    with pytest.raises(HostError, match="rank 0 lost rank 1: "):
        ranks.hosts[0].step(Batch.build([request], ranks.pager, ranks.plan.query_tile))


def test_a_rank_that_ends_beside_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlap(monkeypatch)
    test_a_rank_that_ends("sockets", tmp_path)


def test_a_rank_that_ends_while_the_network_is_measured(tmp_path: Path) -> None:
    ranks = ranks_without_the_second(tmp_path)
    with pytest.raises(HostError, match="rank 0 lost rank 1: "):
        ranks.hosts[0].use(ranks.exchanges[0])


@pytest.mark.parametrize(
    ("host", "parallel"), few([("cpu", "tensor 2"), ("sim", "2 x 2"), ("cpu", "2 stages")], [("cpu", "tensor 2")])
)
def test_the_greatest_logits_where_these_are_enough(host: str, parallel: str, tmp_path: Path) -> None:
    """They are those that all logits have, and rank 0 gets no others."""
    spec = small_spec(**EXACT)
    path = save_canonical(tmp_path, compile_spec(spec, targets=["cpu"]).artifact)
    ranks = ThreadRanks(split(spec, host, **SPLITS[parallel]), open_weights(path), host)
    gathered = [0]
    logits = {}
    for tops in (0, 1, 5):
        seq, pager = ranks.pager.add_sequence(), ranks.pager
        request = BatchRequest(seq, [3, 1, 4, 1, 5], 0, "all")
        logits[tops] = ranks.step(replace(Batch.build([request], pager, ranks.plan.query_tile), tops=tops)).copy()
        gathered.append(sum(collectives.gathered for collectives in ranks.collectives))
    whole, vocab = logits[0], spec.model.vocab_size
    last = ranks.collectives[0].meeting.tensor
    assert np.diff(gathered).tolist() == [5 * vocab, 5 * 2 * last, 5 * 2 * 5 * last]
    for tops in (1, 5):
        known = np.isfinite(logits[tops])
        np.testing.assert_array_equal(logits[tops][known], whole[known])
        assert (known.sum(axis=1) == tops * last).all()
        assert (known | (whole < np.sort(whole, axis=1)[:, -tops, None])).all()


SUMS: dict[str, tuple[dict[str, Any], int]] = {
    "two for each layer and one for the embedding": ({}, 5),
    "one for parallel blocks": ({"model__parallel_blocks": True}, 3),
    "three with a norm over all heads": ({"model__attention__qk_norm": {"scope": "all"}}, 7),
}


@pytest.mark.parametrize("case", few(SUMS, list(SUMS)[2:]))
def test_sums_of_a_layer(case: str, tmp_path: Path) -> None:
    changes, sums = SUMS[case]
    (ranks,) = check(small_spec(**EXACT, **changes), "cpu", tmp_path, {"tensor": 2}, transport="calls")
    assert ranks.collectives[0].calls == ranks.collectives[1].calls
    assert ranks.collectives[1].calls.count("all_sum") == 5 * sums


@pytest.mark.long
def test_hidden_rows_of_stages_of_several_ranks(tmp_path: Path) -> None:
    """All ranks of the last stage have them and the first one gives them; the others take part in its sums alone."""
    (ranks,) = check(small_spec(output="hidden", **EXACT), "cpu", tmp_path, SPLITS["2 x 2"], transport="calls")
    assert [collectives.gathered > 0 for collectives in ranks.collectives] == [False, False, True, False]
