"""Pipelined generation on an NVIDIA GPU: in place, in order, whatever MLX makes of its launches."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.spec.parallel import Parallel
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.ranks import run_ranks
from mlxr_tests.specs import UNPACKED, small_spec
from mlxr_tests.storyteller import Q8_0, storyteller_spec

pytestmark = pytest.mark.skipif(not has_cuda(), reason="no NVIDIA GPU")


def test_1000_pipelined_steps_make_no_copy_of_the_arena() -> None:
    # An arena of 384 MiB: far more than everything else together.
    artifact = compile_spec(storyteller_spec(cache={"num_blocks": 4096})).artifact
    model = mlxr.load(artifact, Q8_0, host="cuda")
    most = artifact.plan.arena.context - 8
    model.start([[1, 403, 27]], max_tokens=8, ignore_eos=True).finish()
    before, token = mx.get_active_memory(), int(np.array(model.arena.token)[0])
    recorded = model.host.recorded_steps
    mx.reset_peak_memory()
    steps = 0
    while steps < 1000:
        (answer,) = model.start([[1, 403, 27]], max_tokens=most, ignore_eos=True).finish()
        steps += len(answer.token_ids)
    assert mx.get_peak_memory() - before < artifact.plan.arena.size_bytes // 8
    accesses = int(np.array(model.arena.token)[0]) - token
    launched = steps - (model.host.recorded_steps - recorded)
    assert accesses >= launched * artifact.plan.num_layers, "each access adds one to the token, but of recorded steps"
    assert launched < steps // 4, model.host.notes


@pytest.mark.parametrize("graphs", ["0", "1"])
@pytest.mark.parametrize("operations", ["1", "2", "50"])
def test_tokens_do_not_depend_on_how_mlx_sends_launches(
    golden: list[dict[str, Any]], operations: str, graphs: str
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mlxr_tests.greedy_tokens", "cuda"],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        | {"MLX_MAX_OPS_PER_BUFFER": operations, "MLX_USE_CUDA_GRAPHS": graphs},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [recorded["greedy_fp32"] for recorded in golden]


@pytest.mark.parametrize(("threads", "blocks"), [(256, 1), (512, 2), (1024, 1)])
def test_tokens_are_the_recorded_ones_when_a_step_is_one_kernel(
    golden: list[dict[str, Any]], threads: int, blocks: int
) -> None:
    geometry = Geometry.of(step_threads=threads, step_blocks=blocks)
    artifact = compile_spec(storyteller_spec(compute="exact"), geometry, ("metal",)).artifact
    model = mlxr.load(artifact, Q8_0, host="cuda")
    for recorded in golden:
        model.host.launches.clear()
        expected = recorded["greedy_fp32"]
        (answer,) = model.start([recorded["ids"]], max_tokens=len(expected), ignore_eos=True).finish()
        assert answer.token_ids == expected
        steps = [count for name, count in model.host.launches.items() if name.startswith("step_")]
        assert len(steps) == 1 and steps[0] >= len(expected) - 1, model.host.notes


def test_weights_that_stay_unpacked_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of several sizes again and again, and decode of many sequences, bit by bit."""
    artifact = compile_spec(small_spec(**UNPACKED), Geometry.of(mlx_quantised_min_rows=17), ("metal",)).artifact
    weights, found = random_buffers(artifact.plan)[0], []
    for setting in ("0", "100"):
        monkeypatch.setenv("MLXR_UNPACKED_MIB", setting)
        arena, pager = Arena(artifact.plan.arena), Pager.from_geometry(artifact.plan.arena)
        host, logits, unpacked = CudaHost(artifact, weights, arena), [], []
        for sizes in ([39], [30], [39], [39], [1] * 20, [30], [1] * 20, [1] * 20):
            host.launches.clear()
            requests = [BatchRequest(pager.add_sequence(), list(range(3, 3 + size)), 0) for size in sizes]
            logits.append(host.read(host.step(Batch.build(requests, pager, artifact.plan.query_tile))))
            unpacked.append(sum(count for name, count in host.launches.items() if "unpack" in name))
            for request in requests:
                pager.free(request.seq_id)
        found.append((logits, unpacked))
    (plain, each), (kept, once) = found
    assert all(np.isfinite(a).all() and np.array_equal(a, b) for a, b in zip(plain, kept, strict=True))
    assert all(each) and once[0] and not any(once[1:]), (each, once)


def test_forks_and_reused_blocks_give_the_tokens_of_a_fresh_run(
    storyteller: Callable[[str, str], mlxr.Model], golden: list[dict[str, Any]]
) -> None:
    model = storyteller("cuda", "q8_0")
    sampling = mlxr.Sampling(temperature=0.8, top_k=40, seed=5)  # each sequence has a stream of its own
    ids = [recorded["ids"] for recorded in golden]
    fresh = [model.start([one], max_tokens=40, ignore_eos=True).finish()[0] for one in ids]
    (drawn,) = model.start(ids[:1], max_tokens=40, sampling=sampling, ignore_eos=True).finish()
    for _ in range(20):
        together = model.start(ids, max_tokens=40, ignore_eos=True).finish()
        assert [a.token_ids for a in together] == [a.token_ids for a in fresh]
        samples = model.start(ids[:1], max_tokens=40, sampling=replace(sampling, n=3), ignore_eos=True).finish()
        assert samples[0].token_ids == drawn.token_ids
        assert len({tuple(sample.token_ids) for sample in samples}) == 3
    assert model.pager.num_free_blocks == model.pager.num_blocks
    model.pager.check_integrity()


def test_the_prefix_cache_gives_the_tokens_of_a_fresh_run(storyteller: Callable[[str, str], mlxr.Model]) -> None:
    model = storyteller("cuda", "q8_0")
    fresh_model = mlxr.load(model.artifact, Q8_0, host="cuda")
    ids = model.encode("Once upon a time there was a miller")
    for _ in range(4):
        (answer,) = model.start([ids], max_tokens=12, ignore_eos=True).finish()
        ids = [*ids, *answer.token_ids, 403, 27]
    (fresh,) = fresh_model.start([ids[:-14]], max_tokens=12, ignore_eos=True).finish()
    assert answer.token_ids == fresh.token_ids
    assert answer.cached_tokens > 0 and not fresh.cached_tokens


def test_prompts_that_are_filled_up_give_the_logits_of_exact_ones() -> None:
    """Of one sequence and of several; again they are equal to the bit, since what is added is nobody's."""
    changes: dict[str, Any] = {
        "model__context": 400,
        "model__hidden_size": 256,
        "model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64},
        "model__mlp": {"intermediate_size": 512},
        "activation_dtype": "bf16",
        "weights": {"default": "affine4_g64_bf16"},
        "cache": {"dtype": "bf16", "block_size": 16, "max_sequences": 3},
        "prefill_chunk": 300,
    }
    sizes = {"prefill_mma": 1, "prefill_rows": 64, "mlx_quantised_min_rows": 33, "mma_min_rows": 2, "mma_max_rows": 32}
    found = []
    for padding in (0, 32):
        artifact = compile_spec(small_spec(**changes), Geometry.of(chunk_padding=padding, **sizes), ("metal",)).artifact
        host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
        logits = []
        for parts in ((5,), (37,), (299,), (150, 3), (17, 18, 2), (299,), (37,)):
            pager = Pager.from_geometry(artifact.plan.arena)
            requests = [BatchRequest(pager.add_sequence(), [i % 61 for i in range(n)], 0) for n in parts]
            logits.append(host.read(host.step(Batch.build(requests, pager, artifact.plan.query_tile))))
        found.append(logits)
    exact, filled = found
    for got, want in zip(filled, exact, strict=True):
        assert np.linalg.norm(got - want) <= 2e-2 * np.linalg.norm(want)
    assert np.array_equal(filled[5], filled[2]) and np.array_equal(filled[6], filled[1])


@pytest.mark.parametrize(
    ("parallel", "step_threads"),
    [({"tensor": 2}, 0), ({"tensor": 2}, 512), ({"pipeline": 2}, 0), ({"tensor": 2, "pipeline": 2}, 0)],
    ids=str,
)
def test_ranks_on_one_card(
    parallel: dict[str, int], step_threads: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Processes that share the card, over ring: each has its part, and together they give one process's tokens.

    The card runs them in turns of 2 ms, so that sums, for which each waits, take as long.
    """
    spec = storyteller_spec(activation_dtype="f32")
    options = ["--weights", str(Q8_0), "--host", "cuda", "--temperature", "0", "--ignore-eos", "--json"]
    options += ["--prompt", "Once upon a time there was a girl who lived by the sea. " * 4, "--max-tokens", "40"]
    whole, split = tmp_path / "whole", tmp_path / "split"
    compile_spec(spec, targets=["metal"]).artifact.write(whole)
    spec = spec.model_copy(update={"parallel": Parallel(**parallel)})
    compile_spec(spec, Geometry.of(step_rank_threads=step_threads), ["metal"]).artifact.write(split)
    options += ["--trust-artifact"] if step_threads else []  # its spec does not say so
    assert main(["run", str(whole), *options]) == 0
    alone = json.loads(capfd.readouterr().out)
    ranks = run_ranks(Parallel(**parallel).size, ["-m", "mlxr.cli", "run", str(split), *options], 120)
    assert [rank.code for rank in ranks] == [0] * len(ranks), ranks
    together = json.loads(ranks[0].stdout)
    assert together["token_ids"] == alone["token_ids"]
    launches = together["launches"]
    assert launches["gather"] >= 40
    if "pipeline" not in parallel:
        sums = launches["all_sum"] + launches["token_ids"]
        assert launches["peer_sum_f32"] == sums, "sums go through the card's memory"
        assert launches["token_ids"] >= 38, "steps start before the tokens of the last one are known"
    steps = sum(count for name, count in launches.items() if name.startswith("step_"))
    assert (steps >= 39) == bool(step_threads), launches
