"""Requests of a model that keeps a state of each sequence: where they begin, and that every token is right.

The host's logits are a hash of K, V and the state (`HashHost`); `test_core_stateful` has random requests.
"""

from dataclasses import replace

import pytest

from mlxr.compiler.errors import ArenaError
from mlxr.runtime.cache.sequence_states import SequenceStates
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.speculation.draft_model import DraftModel
from mlxr.runtime.engine.speculation.text import Text
from mlxr_tests.hash_host import VOCAB, Answer, Guesser, HashEngine, answer_alone

SYSTEM = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
"""Two blocks of 4, and a half."""


@pytest.fixture(params=[False, True], ids=["waits", "pipelines"])
def engine(request):
    return HashEngine(pipelines=request.param, state_slots=20)


def ask(engine, prompt, **terms):
    """Runs one request; the tokens of its prompt that were not computed, and all its tokens."""
    answer = engine.add(prompt, **terms)
    engine.run()
    assert answer.tokens == engine.alone(answer.request)
    return answer.request.answer.completion.cached_tokens, [*prompt, *answer.tokens]


def test_the_same_prompt_begins_at_its_last_block(engine):
    assert ask(engine, SYSTEM)[0] == 0
    computed = engine.core.stats().computed_tokens
    cached, tokens = ask(engine, SYSTEM)
    assert cached == 8, "K and V of 9 tokens are there, and a state of 8"
    assert engine.core.stats().cached_tokens == 8
    assert engine.core.stats().computed_tokens - computed == len(tokens) - 1 - 8


def test_a_conversation_goes_on_where_its_answer_ended(engine):
    _, tokens = ask(engine, SYSTEM)
    cached, _ = ask(engine, [*tokens, 11, 12, 13])
    assert cached == len(tokens) - 1, "all but the last token, which was never computed"


def test_a_conversation_goes_on_at_the_end_of_its_prompt_without_the_answer(engine):
    ask(engine, SYSTEM)
    assert ask(engine, [*SYSTEM, 30, 31, 30])[0] == len(SYSTEM)


def test_where_k_and_v_went_further_a_snapshot_is_taken(engine):
    cached = [ask(engine, [*SYSTEM, *[20 + i] * 9])[0] for i in range(3)]
    assert cached == [0, 0, len(SYSTEM)], "the second one finds K and V of the prompt that both share, but no state"


def test_layers_with_windows_begin_where_there_is_a_state_too():
    engine = HashEngine(state_slots=20, window=9)
    cached = [ask(engine, [*SYSTEM[:9], *[20 + i] * 9])[0] for i in range(3)]
    assert cached == [0, 0, 8], "the second one finds two blocks in all layers, but no state"


def test_a_long_prompt_leaves_snapshots_on_its_way():
    engine = HashEngine(state_slots=20, state_every=8)
    prompt = [i % 7 for i in range(40)]
    ask(engine, prompt)
    assert ask(engine, [*prompt[:18], *[9] * 8])[0] == 16, "not 18, of which K and V are there"


def test_answers_of_one_prompt_read_it_once(engine):
    answers = [Answer() for _ in range(3)]
    requests = engine.requests(SYSTEM, Sampling(max_tokens=6, temperature=1.0, seed=5, n=3))
    for answer, request in zip(answers, requests, strict=True):
        engine.core.add(replace(request, listener=answer.listen))
    engine.run()
    assert [answer.tokens for answer in answers] == [engine.alone(request) for request in requests]
    assert [request.answer.completion.cached_tokens for request in requests] == [0, 8, 8]


def test_a_preempted_request_goes_on_from_its_state(engine):
    answer = engine.add(SYSTEM, 12)
    for _ in range(5):
        engine.core.step()
    engine.core._ahead = None
    answer.request.run.in_flight = 0
    engine.core.scheduler.preempt(answer.request)
    before = engine.core.stats().computed_tokens
    length = len(answer.request.answer.tokens)
    engine.run()
    assert answer.tokens == engine.alone(answer.request)
    assert engine.core.stats().computed_tokens - before == len(SYSTEM) + 12 - length, "nothing is computed again"


def test_wrong_guesses_are_undone():
    engine = HashEngine(state_slots=20)
    engine.core.speculator = Guesser(engine)
    for prompt in (SYSTEM, SYSTEM[:7], [*SYSTEM, 11]):
        ask(engine, prompt, max_tokens=30)
    stats = engine.core.stats()
    wrong = stats.draft_tokens - stats.accepted_tokens
    assert stats.accepted_tokens > 20 and wrong > 5


def test_guesses_are_as_many_as_can_be_undone():
    engine = HashEngine(state_slots=2 * 4 + 2)
    engine.core.speculator = Guesser(engine)
    ask(engine, SYSTEM, max_tokens=30)
    assert max(max(step) for step in engine.host.steps[1:]) == 3


def test_a_draft_model_goes_back_to_the_last_guess_that_came_true():
    engine = HashEngine(state_slots=24)
    draft = DraftModel(engine.host, engine.pager, VOCAB)
    first = answer_alone(SYSTEM, Sampling(max_tokens=5), has_state=True)
    assert draft.propose([Text("a", SYSTEM, 5)]) == [first]
    text = [*SYSTEM, *first[:2], (first[2] + 1) % VOCAB]
    del engine.host.steps[:]
    second = answer_alone(text, Sampling(max_tokens=3), has_state=True)
    assert draft.propose([Text("a", text, 3)]) == [second]
    assert engine.host.steps == [[1], [1], [1]], "one token is new, and two of the guesses are computed for the next"
    draft.close()
    engine.check_empty()


def test_a_model_without_states_has_no_table():
    engine = HashEngine()
    assert engine.pager.states is None
    ask(engine, SYSTEM)
    assert ask(engine, SYSTEM)[0] == 9


def test_states_need_slots():
    with pytest.raises(ArenaError, match="7 state slots are too few for 4 sequences"):
        SequenceStates(7, 4, 16)
