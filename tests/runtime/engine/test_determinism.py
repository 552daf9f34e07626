"""Exact and deterministic models: a request's answer does not depend on what else the engine does meanwhile."""

from typing import Any

import pytest

import mlxr
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr_tests.storyteller import TINY

BEGIN = [1, 365, 392, 264, 387, 387, 263, 448]
PROMPTS = [BEGIN[: 2 + i] + [300 + 7 * i] * (7 * (i % 3)) for i in range(6)]
PARAMS = mlxr.Sampling(temperature=0.9, seed=3, max_tokens=24, ignore_eos=True, logprobs=1)
GREEDY = mlxr.Sampling(temperature=0.0, max_tokens=24, ignore_eos=True)
"""For a GPU, where MLX samples: another number of rows may round a probability otherwise."""


@pytest.mark.parametrize(
    ("host", "options", "params"),
    [
        ("cpu", {"compute": "exact"}, PARAMS),
        pytest.param("cpu", {"deterministic": True}, PARAMS, marks=pytest.mark.long),
        pytest.param("sim", {}, PARAMS, marks=pytest.mark.long),
        pytest.param(
            "cuda", {"deterministic": True}, GREEDY, marks=pytest.mark.skipif(not has_cuda(), reason="no NVIDIA GPU")
        ),
    ],
    ids=["exact", "deterministic", "sim", "cuda"],
)
def test_answers_are_the_same_alone_and_in_company_after_preemption(
    host: str, options: dict[str, Any], params: mlxr.Sampling
) -> None:
    # Six blocks for six requests of two or three each: some give theirs back, and find some of them again.
    changes = mlxr.Changes(context=48, cache_memory="96KiB", **options)
    with mlxr.Engine(TINY, host=host, max_sequences=6, changes=changes) as engine:
        alone = [engine.generate_all([prompt], params, salt=str(prompt))[0] for prompt in PROMPTS]
        assert not engine.stats().preemptions and not engine.stats().cached_tokens
        together = engine.generate_all(PROMPTS, params)
        stats = engine.stats()
    assert stats.blocks == 6 and stats.preemptions and stats.cached_tokens, "or else the test shows little"
    for lone, other in zip(alone, together, strict=True):
        assert (lone.token_ids, lone.logprobs) == (other.token_ids, other.logprobs)
