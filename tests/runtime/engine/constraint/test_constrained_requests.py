"""Constrained requests in the engine: beside free ones, with forced tokens, preempted, pipelined, failing."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.completion import Completion, Event
from mlxr.runtime.engine.constraint import Constraint
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.engine.speculation.text import Text
from mlxr_tests.storyteller import Q8_0, ROOT, storyteller_spec

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Lily", "Tom"]}, "years_of_age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "years_of_age"],
    "additionalProperties": False,
}
LONG = "(Once upon a time there was a little girl named Lily|The end)\\."


def load(host: str, **cache: Any) -> Model:
    spec = storyteller_spec(
        model={"context": 64}, cache={"max_sequences": 6} | cache, prefill_chunk=32, compute="exact"
    )
    return mlxr.load(compile_spec(spec).artifact, Q8_0, host=host)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load("cpu") as loaded:
        yield loaded


def sampled(seed: int, **options: Any) -> Sampling:
    return Sampling(temperature=1.3, seed=seed, max_tokens=40, **options)


MIXED = [
    ("Once upon a time", sampled(8)),
    ("Her name was", sampled(2, json_schema=SCHEMA)),
    ("The dog and the cat", Sampling(max_tokens=25)),
    ("He said:", sampled(3, regex=LONG)),
    ("Tom likes", sampled(4, choice=["red apples", "green apples", "red"])),
    ("Two plus two:", sampled(5, grammar='root ::= sum "."\nsum ::= [1-9] ("+" [1-9]){1,3}')),
]


def together(model: Model, prompts: list[tuple[str, Sampling]]) -> list[Completion]:
    """The answers to prompts that are computed in the same steps."""
    generations = [model.start([prompt], sampling=sampling) for prompt, sampling in prompts]
    running: list[Iterator[Event]] = list(generations)
    while running:
        running = [generation for generation in running if next(generation, None) is not None]
    return [generation.completions[0] for generation in generations]


def check(answers: list[Completion]) -> None:
    """The constrained answers of `MIXED` follow their constraints, and end there."""
    person = json.loads(answers[1].text)
    assert person["name"] in ("Lily", "Tom") and 1 <= person["years_of_age"] <= 99 and len(person) == 2
    assert re.fullmatch(LONG, answers[3].text)
    assert answers[4].text in ("red apples", "green apples", "red")
    assert re.fullmatch(r"[1-9](\+[1-9]){1,3}\.", answers[5].text)
    assert [answers[i].finish_reason for i in (1, 3, 4, 5)] == ["stop"] * 4


def test_constrained_and_free_requests_share_steps_and_do_not_disturb_each_other(model: Model) -> None:
    before = model.core.stats().steps
    answers = together(model, MIXED)
    assert model.core.stats().steps - before <= 42, "they were computed together"
    check(answers)
    for answer, (prompt, sampling) in zip(answers, MIXED, strict=True):
        alone = model.generate(prompt, sampling=sampling)
        assert (alone.token_ids, alone.text) == (answer.token_ids, answer.text)


def test_an_end_token_ends_nothing_where_the_constraint_goes_on(model: Model) -> None:
    """In some forms it also ends thoughts; a stop token of the request's own ends the answer anywhere."""
    end = model.require_tokenizer().eos_id
    assert end is not None
    both = Sampling(max_tokens=20, grammar=f'start: "red" <[{end}]> "blue"')
    for sampling in (both, replace(both, logprobs=0)):
        answer = model.generate("Tom likes", sampling=sampling)
        assert answer.token_ids.count(end) >= 1 and (answer.text, answer.finish_reason) == ("redblue", "stop")
    stopped = model.generate("Tom likes", sampling=replace(both, stop_tokens=(end,)))
    assert stopped.text == "red" and stopped.token_ids[-1] == end


def test_forced_tokens_take_no_step_each(model: Model) -> None:
    """The schema's keys, or the rest of a text that has begun; a step computes them all at once."""
    before = model.core.stats()
    answer = model.generate("He said:", sampling=sampled(3, regex=LONG))
    after = model.core.stats()
    assert len(answer.token_ids) > 4 or answer.text == "The end."
    forced = after.forced_tokens - before.forced_tokens
    assert forced >= len(answer.token_ids) - 2
    assert after.steps - before.steps == len(answer.token_ids) - forced, "a step for each that was sampled"
    assert after.generated_tokens - before.generated_tokens == len(answer.token_ids)


def test_tokens_with_log_probabilities_are_the_same_and_all_are_sampled(model: Model) -> None:
    for prompt, sampling in (MIXED[1], MIXED[3]):
        options = {
            name: getattr(sampling, name) for name in ("seed", "json_schema", "regex") if getattr(sampling, name)
        }
        answer = model.generate(prompt, sampling=sampled(**options, logprobs=2))
        assert answer.token_ids == model.generate(prompt, sampling=sampling).token_ids
        assert [logprob.token_id for logprob in answer.logprobs] == answer.token_ids


def test_samples_of_one_prompt_each_follow_the_constraint(model: Model) -> None:
    sampling = sampled(7, n=5, regex="[a-z]{3}, [a-z]{3}")
    answers = model.start(["They like to"], sampling=sampling).finish()
    assert all(re.fullmatch("[a-z]{3}, [a-z]{3}", answer.text) for answer in answers)
    assert len({answer.text for answer in answers}) == 5
    again = model.start(["They like to"], sampling=sampling).finish()
    assert [answer.text for answer in again] == [answer.text for answer in answers]


def test_limits_cut_a_constrained_answer(model: Model) -> None:
    answer = model.generate("x", sampling=Sampling(regex="[a-z ]{200}", max_tokens=9))
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 9)
    answer = model.generate("x", sampling=Sampling(regex="(Once upon a time )+", max_tokens=2))
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 2), "also among forced tokens"
    answer = model.generate("x", sampling=Sampling(choice=["one, two. Three"], stop="two"))
    assert (answer.text, answer.finish_reason) == ("one, ", "stop")
    answer = model.generate("x", sampling=Sampling(choice=["yes"], min_tokens=30, ignore_eos=True))
    assert (answer.text, answer.finish_reason) == ("yes", "stop"), "there is nothing more to say"


def test_what_cannot_be_compiled_is_refused_before_anything_is_read(model: Model) -> None:
    before = model.core.stats()
    with pytest.raises(RequestError, match="cannot be enforced: uniqueItems"):
        model.start(["Once", "Then"], sampling=Sampling(json_schema={"uniqueItems": True}, strict=True))
    assert model.core.stats() == before


@pytest.mark.long
def test_preempted_requests_go_on_where_they_were(model: Model) -> None:
    expected = [model.generate(prompt, sampling=sampling).token_ids for prompt, sampling in MIXED]
    generations = [model.start([prompt], sampling=sampling) for prompt, sampling in MIXED]
    for _ in range(3):
        for generation in generations:
            next(generation, None)
        for request in [*model.core.scheduler.running]:
            model.core.scheduler.preempt(request)
    assert [generation.finish()[0].token_ids for generation in generations] == expected


def test_a_constraint_that_fails_ends_its_request_alone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Constraint._make_mask

    def broken(self: Constraint) -> Any:
        if self._option == "regex" and self._tokens:
            raise RequestError("regex: too complex")
        return make(self)

    alone = model.generate(*MIXED[0][:1], sampling=MIXED[0][1]).token_ids
    monkeypatch.setattr(Constraint, "_make_mask", broken)
    free = model.start([MIXED[0][0]], sampling=MIXED[0][1])
    failing = model.start(["x"], sampling=sampled(1, regex="[a-z]{20}"))
    next(free)
    with pytest.raises(RequestError, match="regex: too complex"):
        failing.finish()
    assert free.finish()[0].token_ids == alone
    assert model.pager.num_sequences == 0


def test_an_interruption_leaves_the_constraint_where_the_answer_is(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the forced tokens of an answer: the rest comes after it."""
    expected = model.generate("He said:", sampling=sampled(3, regex=LONG))
    generation = model.start(["He said:"], sampling=sampled(3, regex=LONG))
    request = generation._requests[0]
    add, calls = model.core._answers._add_token, 0

    def interrupted(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        add(*arguments)

    monkeypatch.setattr(model.core._answers, "_add_token", interrupted)
    model.core.add(request)
    with pytest.raises(KeyboardInterrupt):
        while not request.answer.is_done:
            model.core.step()
    while not request.answer.is_done:
        model.core.step()
    same = replace(
        request.answer.completion, cached_tokens=expected.cached_tokens
    )  # other tests may have the same prompt
    assert same == expected and calls > 3


class Guesser(Speculator):
    """Guesses what answers were before; every third draft is wrong at its second token."""

    def __init__(self, model: Model, answers: Sequence[Completion]) -> None:
        super().__init__()
        prompts = [tuple(model.encode(prompt)) for prompt, _ in MIXED]
        self._texts = {prompt: [*prompt, *answer.token_ids] for prompt, answer in zip(prompts, answers, strict=True)}
        self._drafts = 0

    def propose(self, texts: Sequence[Text], tokens: int, room: int) -> list[list[int]]:
        drafts = []
        for text in texts:
            known = self._texts[tuple(text.tokens[: text.key.prompt_length])]
            draft = known[len(text.tokens) : len(text.tokens) + min(text.most, room, 4)]
            self._drafts += 1
            if self._drafts % 3 == 0:
                draft[1:2] = [5] * len(draft[1:2])
            room -= len(draft)
            drafts.append(draft)
        return drafts


@pytest.mark.long
def test_constrained_requests_speculate_with_the_mask_of_each_place(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = together(model, MIXED)
    monkeypatch.setattr(model.core, "speculator", Guesser(model, answers))
    before = model.core.stats()
    again = together(model, MIXED)
    after = model.core.stats()
    assert [answer.token_ids for answer in again] == [answer.token_ids for answer in answers]
    assert after.accepted_tokens - before.accepted_tokens > 20
    assert after.draft_tokens - before.draft_tokens > after.accepted_tokens - before.accepted_tokens
    assert after.forced_tokens > before.forced_tokens


def test_hosts_that_pipeline_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [("Once upon a time", sampled(1, min_tokens=9)), *MIXED[3:5]]
    prompts = [(prompt, replace(sampling, max_tokens=9)) for prompt, sampling in prompts]
    with load("reference") as reference:
        expected = together(reference, prompts)
        monkeypatch.setattr(type(reference.host), "pipelines", True)
        assert [a.token_ids for a in together(reference, prompts)] == [a.token_ids for a in expected]
    assert expected[2].text in MIXED[4][1].choice


def test_the_examples_of_the_document_can_be_used(model: Model) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/CONSTRAINTS.md").read_text(), re.DOTALL)
    seen: list[Sampling] = []
    exec(code.replace("mlxr.Sampling(", "see("), {"see": lambda **options: seen.append(Sampling(**options))})
    assert len(seen) == 4
    for sampling in seen:
        assert model.generate("She said", sampling=replace(sampling, max_tokens=20)).text
