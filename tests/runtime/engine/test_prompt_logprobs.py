"""Log probabilities of prompts and answers are those of the logits, however the prompt was read."""

import numpy as np
import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr_tests.hash_host import Answer, HashEngine
from mlxr_tests.storyteller import Q8_0, storyteller_spec


@pytest.fixture(scope="module")
def model() -> mlxr.Model:
    """Storyteller that reads prompts in steps of 16 tokens."""
    spec = storyteller_spec(model={"context": 128}, cache={"max_sequences": 3}, prefill_chunk=16, compute="exact")
    return mlxr.load(compile_spec(spec).artifact, Q8_0, host="cpu")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    return exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))


def test_they_are_those_of_the_logits(model: mlxr.Model) -> None:
    prompt = [1, *range(300, 340)]
    sampling = mlxr.Sampling(prompt_logprobs=3, logprobs=2, temperature=0.8, seed=1, max_tokens=5)
    model.start([prompt], max_tokens=2).finish()  # the prefix cache has it now, and does not serve it
    asking, other = (model.start([prompt], sampling=options) for options in (sampling, mlxr.Sampling(max_tokens=9)))
    (answer,), _ = asking.finish(), other.finish()
    assert answer.cached_tokens == 0
    expected = log_softmax(model.logits([*prompt, *answer.token_ids]))
    told = [*answer.prompt_logprobs, *answer.logprobs]
    assert len(answer.prompt_logprobs) == len(prompt) - 1 and len(answer.logprobs) == 5
    for row, (entry, most) in enumerate(zip(told, [3] * (len(prompt) - 1) + [2] * 5, strict=True)):
        token = [*prompt, *answer.token_ids][row + 1]
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(expected[row, token], abs=2e-3)
        assert [token for token, _ in entry.top] == np.argsort(-expected[row], kind="stable")[:most].tolist()
        assert [value for _, value in entry.top] == pytest.approx(
            np.sort(expected[row])[::-1][:most].tolist(), abs=2e-3
        )


def test_what_a_preempted_request_had_launched_is_not_told_twice() -> None:
    """It begins again while a chunk that it had launched ahead is not read."""
    engine, answer, prompt = HashEngine(pipelines=True, max_tokens=8), Answer(), [*range(3, 27)]
    (answer.request,) = engine.requests(prompt, mlxr.Sampling(prompt_logprobs=0, max_tokens=3), answer.listen)
    engine.core.add(answer.request)
    engine.core.step()
    engine.core.scheduler.preempt(answer.request)
    engine.run()
    assert [entry.token_id for entry in answer.request.answer.completion.prompt_logprobs] == prompt[1:]
    assert answer.tokens == engine.alone(answer.request)
