"""Ranks start a step before the tokens of the last one are known: on host cuda, with the sim in MLX's place."""

import json

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.runtime.hosts.cuda import device
from mlxr_tests.card_rank import PROMPTS, SAMPLING, TOKENS
from mlxr_tests.few import few
from mlxr_tests.ranks import run_ranks
from mlxr_tests.storyteller import TINY, tiny_spec

SPLITS = [{"tensor": 2}, {"pipeline": 2}]


@pytest.mark.long
@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
@pytest.mark.parametrize("parallel", few(SPLITS, SPLITS[:1]), ids=str)
def test_steps_are_told_before_the_last_one_is_read(parallel: dict[str, int]) -> None:
    ranks = run_ranks(2, ["-m", "mlxr_tests.card_rank", json.dumps(parallel)])
    assert [rank.code for rank in ranks] == [0, 0], ranks
    told, other_ids = (json.loads(rank.stdout) for rank in ranks)
    whole = mlxr.load(compile_spec(tiny_spec(cache={"max_sequences": 4})).artifact, TINY, host="sim")
    prompts = [list(prompt) for prompt in PROMPTS]
    answers = whole.start(prompts, max_tokens=TOKENS, sampling=mlxr.Sampling(**SAMPLING)).finish()
    assert told["tokens"] == [answer.token_ids for answer in answers]
    assert other_ids == told["late"]
    assert told["widths"] == [2 * 64 * parallel.get("tensor", 1)], "values and columns of the greatest logits"
    if "pipeline" in parallel:  # rank 0's ids reach its own stage alone
        assert not told["ahead"] and not other_ids
    else:
        assert told["ahead"] == told["told"] - 1 == len(other_ids) - told["warm"] and told["told"] > TOKENS
