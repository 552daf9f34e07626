"""Which answers take part in a step: decoding before prompts, limits of steps, blocks of the arena, steps ahead."""

from types import SimpleNamespace
from typing import Any

from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.answer import Answer
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.sampling import Sampler, Sampling
from mlxr.runtime.engine.schedule import Scheduled, next_step, step_ahead


def make_pager(num_blocks: int = 8) -> Pager:
    """Blocks of 4 tokens, up to 3 sequences of 8 blocks."""
    return Pager(num_blocks, 4, 8, 3)


def make_plan(max_tokens: int = 8, max_rows: int = 3) -> Any:
    return SimpleNamespace(max_tokens=max_tokens, max_rows=max_rows)


def add_answer(pager: Pager, length: int, pending: int, max_length: int = 32) -> Answer:
    """An answer with `length` tokens in the arena and `pending` ones that are still to come."""
    seq_id = pager.add_sequence()
    if length:
        pager.append(seq_id, length)
        pager.take_copies()
    completion = Completion(length + pending)
    answer = Answer(seq_id, seq_id, list(range(pending)), Sampler(Sampling()), None, 0, completion, max_length, ())
    answer.length = length
    return answer


def shape(scheduled: Scheduled) -> list[tuple[int, int, int, str]]:
    """Of each request: the answer, how many tokens, from where, and its logits."""
    return [(answer.index, len(r.tokens), r.start, r.rows) for answer, r in scheduled]


def test_answers_that_decode_come_before_prompts_which_share_the_rest() -> None:
    pager = make_pager()
    answers = [add_answer(pager, 0, 5), add_answer(pager, 6, 1), add_answer(pager, 0, 9)]
    assert shape(next_step(answers, make_plan(), pager)) == [(1, 1, 6, "last"), (0, 5, 0, "last"), (2, 2, 0, "none")]
    assert [pager.length(answer.seq_id) for answer in answers] == [0, 6, 0], "nothing is appended yet"
    assert [len(answer.pending) for answer in answers] == [5, 1, 9]


def test_a_prompt_that_would_end_needs_a_row_of_logits() -> None:
    pager = make_pager()
    answers = [add_answer(pager, 3, 1), add_answer(pager, 0, 2), add_answer(pager, 0, 9)]
    assert shape(next_step(answers, make_plan(max_rows=1), pager)) == [(0, 1, 3, "last"), (2, 7, 0, "none")]


def test_who_gets_no_blocks_waits() -> None:
    pager = make_pager(num_blocks=3)
    answers = [add_answer(pager, 4, 1), add_answer(pager, 0, 5), add_answer(pager, 0, 2)]
    assert shape(next_step(answers, make_plan(), pager)) == [(0, 1, 4, "last"), (2, 2, 0, "last")]


def test_if_nobody_can_go_on_the_first_one_is_tried_for_the_arenas_error() -> None:
    pager = make_pager(num_blocks=1)
    answers = [add_answer(pager, 4, 1), add_answer(pager, 0, 2)]
    assert shape(next_step(answers, make_plan(), pager)) == [(0, 1, 4, "none")]


def test_the_step_ahead_has_one_token_of_each_answer_that_goes_on() -> None:
    pager = make_pager()
    answers = [add_answer(pager, 5, 0), add_answer(pager, 6, 0, max_length=7)]
    scheduled = step_ahead(answers, answers, make_plan(), pager)
    assert shape(scheduled) == [(0, 1, 5, "last")], "the other one ends with the token that is being sampled"
    assert scheduled[0][1].tokens == [0]
    assert step_ahead(answers[1:], answers, make_plan(), pager) == []


def test_the_step_ahead_is_not_known_while_a_prompt_is_read_or_the_arena_is_full() -> None:
    pager = make_pager(num_blocks=3)
    answers = [add_answer(pager, 4, 0), add_answer(pager, 3, 0)]
    assert len(step_ahead(answers, answers, make_plan(), pager)) == 2
    assert step_ahead(answers, answers[:1], make_plan(), pager) == []
    assert step_ahead(answers, answers, make_plan(max_rows=1), pager) == []
    add_answer(pager, 4, 0)
    assert step_ahead(answers, answers, make_plan(), pager) == []
