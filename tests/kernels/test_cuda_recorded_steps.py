"""Recorded steps and prompts on a card beside those that MLX launches: logits of every step, from the same tokens."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest, DecodeRequests
from mlxr.runtime.hosts.cuda.address_table import address_table
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.cuda.recorded_step import RecordedStep
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import floats, small_spec

pytestmark = pytest.mark.skipif(not has_cuda(), reason="no NVIDIA GPU")

COUNTS = (6, 1, 1, 2, 4, 5, 8, 8)
"""Steps of each launch. Blocks of 4 tokens end within launches and between them."""
EXPERTS = {"intermediate_size": 256, "experts": {"count": 16, "per_token": 4, "router": "softmax_topk"}}
CASES: dict[str, dict[str, Any]] = {
    "bf16": {"weights": {"default": "bf16"}},  # products through threadgroup memory, in clusters
    "q4_k": {"weights": {"default": "q4_k"}},
    "experts": {"weights": {"default": "q4_k"}, "model__mlp": EXPERTS},
    "products": {"weights": {"default": "q4_k"}},
    "one kernel": {"weights": {"default": "q4_k"}},
}
GEOMETRIES = {
    "products": Geometry.of(mlx_min_rows=2, mlx_quantised_min_rows=2, chunk_padding=16),
    "one kernel": Geometry.of(step_threads=512, step_sequences=5),
}


def artifact_of(name: str) -> Artifact:
    spec = small_spec(
        model__hidden_size=512,
        model__attention={"num_heads": 8, "num_kv_heads": 2, "head_dim": 64},
        model__tensor_names="canonical",
        **{"model__mlp": {"intermediate_size": 512}} | CASES[name],
        model__context=128,
        cache={"mode": "paged", "block_size": 4, "max_sequences": 5},
        activation_dtype="bf16",
    )
    if name in GEOMETRIES:
        return compile_spec(spec, GEOMETRIES[name], ("metal",)).artifact
    return compile_spec(spec, targets=("metal",), chip=find_chip("h200")).artifact


@pytest.mark.parametrize("sequences", [1, 5])
@pytest.mark.parametrize("name", list(CASES))
def test_logits_are_those_of_launches_by_mlx(name: str, sequences: int) -> None:
    artifact = artifact_of(name)
    plan, weights = artifact.plan, random_buffers(artifact.plan)[0]
    recorded, launched = (CudaHost(artifact, weights, Arena(plan.arena)) for _ in range(2))
    launched._prefills.notes = ("these are launched by MLX",)
    launched._decodes._recorded.takes = lambda *_, **__: False  # type: ignore[method-assign]
    pager = Pager.from_geometry(plan.arena)
    ids, starts = [pager.add_sequence() for _ in range(sequences)], [20 + 3 * i for i in range(sequences)]

    def agree(found: np.ndarray, wanted: np.ndarray) -> None:
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-2 * np.abs(wanted).max())

    for seq_id, length in zip(ids, starts, strict=True):
        tokens = [(7 * seq_id + i) % 50 + 3 for i in range(length)]
        batch = Batch.build([BatchRequest(seq_id, tokens, 0)], pager, plan.query_tile)
        pager.take_copies()
        logits, wanted = (host.step(batch) for host in (recorded, launched))
        likeliest = recorded.likeliest_of(logits)
        assert (likeliest is None) == (not plan.pads), "others are recorded when they come again"
        if likeliest is not None:
            mx.eval(likeliest.tokens)
        found = floats(logits)
        agree(found, floats(wanted))
        if likeliest is not None:
            (token,), (bits,) = likeliest.read()
            assert token == likeliest.tokens.item() == found[0].argmax() and bits.view(np.float32) == found[0].max()
    tokens, given, waiting, chosen, at = [5 + i for i in range(sequences)], None, [], [], starts
    first = tokens
    for count in COUNTS:
        batch = Batch.build(DecodeRequests(ids, tokens, at), pager, plan.query_tile, given, count)
        pager.take_copies()
        done = recorded.likeliest_of_steps(batch)
        assert done is not None, recorded.notes
        given, at = done.tokens, [start + count for start in at]
        waiting.append(done)
        chosen += [one.read().copy() for one in waiting[:-1]]  # once the next one is launched; later ones write there
        del waiting[:-1]
    (tokens_of, greatest) = np.concatenate([*chosen, waiting[0].read()], 1)
    for seq_id, start in zip(ids, starts, strict=True):
        pager.truncate(seq_id, start)
    for step, tokens in enumerate([first, *tokens_of.tolist()][:-1]):
        requests = [BatchRequest(i, [t], start + step) for i, t, start in zip(ids, tokens, starts, strict=True)]
        logits = floats(launched.step(Batch.build(requests, pager, plan.query_tile)))
        pager.take_copies()
        agree(greatest[step].view(np.float32), logits.max(1))
        agree(logits[np.arange(sequences), tokens_of[step]], logits.max(1))
    assert recorded.recorded_steps == sum(COUNTS) and not launched.recorded_steps
    for step in recorded._decodes._recent.values():  # MLX has moved nothing that they read
        assert isinstance(step, RecordedStep)
        read = {name: array for name, array in step._kept.items() if name in step._addresses}
        assert {"memory", "batch"} < read.keys()
        assert np.array(address_table([*read.values()]))[: len(read)].tolist() == [*map(step._addresses.get, read)]
    assert not recorded.notes or name == "products", recorded.notes
