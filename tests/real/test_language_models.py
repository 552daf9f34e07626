"""Published language models say what llama.cpp says of them: ids, greedy tokens, perplexity. See record.py."""

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mlxr
from mlxr_tests.real_files import HOSTS, RealFiles
from mlxr_tests.storyteller import VALID

# Of two tokens whose probabilities differ by less, in nats, rounding decides: of activations (fast), or of sums.
CLOSE = {"fast": 0.7, "exact": 0.02}
WINDOW = 512
TEXT_BYTES = 20_000


@pytest.fixture(scope="module")
def recorded(files: RealFiles) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / f"data/{files.name}.json").read_text())
    return found


def test_greedy_tokens(model: mlxr.Model, recorded: dict[str, Any]) -> None:
    """Each is the one that llama.cpp chose after the same tokens; and generation goes that way, up to a near tie."""
    tokenizer, close = model.require_tokenizer(), CLOSE[model.artifact.spec.compute]
    compared = total = 0
    for answer in recorded["answers"]:
        ids, expected, margins = answer["ids"], answer["tokens"], answer["margins"]
        assert tokenizer.encode(answer["prompt"], parse_special=True) == ids
        chosen = model.logits([*ids, *expected])[len(ids) - 1 : -1].argmax(axis=1).tolist()
        clear = [margin >= close for margin in margins]
        assert [c for c, is_clear in zip(chosen, clear, strict=True) if is_clear] == [
            e for e, is_clear in zip(expected, clear, strict=True) if is_clear
        ], answer["prompt"]
        compared, total = compared + sum(clear), total + len(clear)
        certain = len(list(takewhile(bool, clear)))
        if certain:
            generation = model.start([ids], max_tokens=certain, sampling=mlxr.Sampling(temperature=0), ignore_eos=True)
            assert generation.finish()[0].token_ids == expected[:certain]
    assert compared >= 0.6 * total, f"only {compared} of {total} tokens are clear: the test sees too little"


def test_answers_in_one_batch(model: mlxr.Model, recorded: dict[str, Any]) -> None:
    """Each prompt twice, all decoded together: up to a near tie each answer is llama.cpp's."""
    close, answers = CLOSE[model.artifact.spec.compute], 2 * recorded["answers"]
    clear = [len(list(takewhile(lambda margin: margin >= close, answer["margins"]))) for answer in answers]
    assert sum(clear) > len(answers), "the test sees too little"
    sampling = mlxr.Sampling(temperature=0, ignore_eos=True)
    generation = model.start([answer["ids"] for answer in answers], max_tokens=max(clear), sampling=sampling)
    for answer, count, said in zip(answers, clear, generation.finish(), strict=True):
        assert said.token_ids[:count] == answer["tokens"][:count], answer["prompt"]


@pytest.mark.parametrize("model", [(host, "fast") for host in HOSTS], indirect=True, scope="module", ids=HOSTS)
def test_perplexity(model: mlxr.Model, recorded: dict[str, Any]) -> None:
    """As llama-perplexity measures: windows that begin with BOS; of each, the tokens in its second half."""
    ids = model.require_tokenizer().encode(VALID.read_bytes()[:TEXT_BYTES].decode())
    losses = np.concatenate([_losses(model, ids[i : i + WINDOW]) for i in range(0, len(ids) - WINDOW + 1, WINDOW)])
    found = float(np.exp(losses.mean()))
    assert found == pytest.approx(recorded["perplexity"], rel=0.005)


def _losses(model: mlxr.Model, window: list[int]) -> npt.NDArray[np.float64]:
    tokenizer = model.require_tokenizer()
    if tokenizer.adds_bos:
        assert tokenizer.bos_id is not None
        window[0] = tokenizer.bos_id
    rows = model.logits(window)[WINDOW // 2 : -1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    losses: npt.NDArray[np.float64] = np.log(np.exp(rows).sum(axis=1))
    return losses - rows[np.arange(len(rows)), window[WINDOW // 2 + 1 :]]
