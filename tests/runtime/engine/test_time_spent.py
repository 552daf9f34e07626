"""Where the time of a request went: causes that are staged, by a clock that steps, masks and guesses move."""

from collections.abc import Callable
from typing import Any

import pytest

from mlxr.runtime.engine.time_spent import CAUSES, Cause, TimeSpent
from mlxr_tests.hash_host import Answer, Guesser, HashEngine
from mlxr_tests.hash_tiers import HashTiers

STEP, TOKEN = 0.01, 0.001
"""Seconds of a step, and of each of its tokens, as the core believes (`HashEngine.seconds`)."""


class TimedEngine(HashEngine):
    """An engine whose steps take time by its clock."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        step = self.host.step

        def timed(batch: Any) -> Any:
            self.now += STEP + TOKEN * batch.num_tokens
            return step(batch)

        self.host.step = timed

    def spent(self, answer: Answer) -> TimeSpent:
        """Where an answer's time went, once it has ended: all of it is told."""
        spent = answer.request.answer.completion.spent
        assert answer.error is None and spent is not None
        return spent


def prompt(count: int, start: int = 3) -> list[int]:
    return [(start + 7 * i + i * i // 5) % 31 for i in range(count)]


def slowest(spent: TimeSpent) -> Cause:
    return max(spent.seconds, key=lambda cause: spent.seconds[cause])


def long_answer() -> Answer:
    engine = TimedEngine()
    answer = engine.add(prompt(5), 40)
    engine.run()
    return ended(engine, answer, 0.0)


def ended(engine: TimedEngine, answer: Answer, added: float) -> Answer:
    """An answer that has just ended: the parts of its time add up."""
    assert engine.spent(answer).total == pytest.approx(engine.now - added)
    return answer


def cold_prompt() -> Answer:
    engine = TimedEngine()
    answer = engine.add(prompt(60), 2)
    engine.run()
    spent = engine.spent(answer)
    assert (spent.missed_tokens, spent.differs_at) == (60, None)
    return ended(engine, answer, 0.0)


def changed_prompt() -> Answer:
    """The prompt of the request before, but for its tenth token."""
    engine = TimedEngine()
    engine.add(prompt(60), 2)
    engine.run()
    changed = prompt(60)
    changed[9] += 1
    answer, added = engine.add(changed, 2), engine.now
    engine.run()
    spent = engine.spent(answer)
    assert (spent.missed_tokens, spent.differs_at, spent.differing) == (51, 9, (changed[9], prompt(60)[9]))
    return ended(engine, answer, added)


def full_engine() -> Answer:
    engine = TimedEngine(max_sequences=1)
    engine.add(prompt(5), 40)
    engine.core.step()
    answer, added = engine.add(prompt(5, 9), 4), engine.now
    engine.run()
    return ended(engine, answer, added)


def smaller_priority() -> Answer:
    """It came first, and others overtook it."""
    engine = TimedEngine(max_sequences=1)
    answer = engine.add(prompt(5, 9), 4, priority=5)
    for number in range(4):
        engine.add(prompt(5, number), 12)
    engine.run()
    return ended(engine, answer, 0.0)


def full_arena() -> Answer:
    engine = TimedEngine(num_blocks=12)
    engine.add(prompt(38), 10)
    engine.core.step()
    answer, added = engine.add(prompt(12, 9), 2), engine.now
    engine.run()
    return ended(engine, answer, added)


def preempted() -> Answer:
    """Both grow until there are no blocks, and the later one gives its own back."""
    engine = TimedEngine(num_blocks=10)
    first = engine.add(prompt(8), 28)
    answer = engine.add(prompt(8, 9), 16)
    engine.run()
    assert first.finish_reason == "length" and engine.core.scheduler.preemptions
    return ended(engine, answer, 0.0)


def same_prompt() -> Answer:
    engine = TimedEngine(max_tokens=8)
    engine.add(prompt(60), 2)
    answer = engine.add(prompt(60), 2)
    engine.run()
    return ended(engine, answer, 0.0)


def slow_tier() -> Answer:
    tiers = HashTiers(4, 40)
    engine = TimedEngine(num_blocks=16, tiers=tiers)
    for start in (3, 9, 14, 21):
        engine.add(prompt(40, start), 2)
        engine.run()
    answer, added = engine.add(prompt(40), 2), engine.now
    engine.core.step()
    assert tiers.readers.jobs, "blocks are being read"
    engine.now += 3.0
    tiers.readers.run()
    engine.run()
    engine.core.close()
    return ended(engine, answer, added)


def others_prompts() -> Answer:
    """It decodes, and several prompts are read meanwhile."""
    engine = TimedEngine(num_blocks=256, max_tokens=64)
    answer = engine.add(prompt(5), 12)
    for _ in range(3):
        engine.core.step()
    for start in (4, 9, 14):
        engine.add(prompt(60, start), 1)
    engine.run()
    return ended(engine, answer, 0.0)


def others_answers() -> Answer:
    engine = TimedEngine(num_blocks=512, max_sequences=24, max_tokens=64)
    engine.add(prompt(3), 6)  # so that it is known how long a step takes alone
    engine.run()
    added = engine.now
    answers = [engine.add(prompt(2, start), 40) for start in range(24)]
    engine.run()
    return ended(engine, answers[0], added)


def slow_mask() -> Answer:
    engine = TimedEngine()
    answer = engine.add(prompt(5), 10)
    answer.request.answer.constraint = SlowConstraint(engine)  # type: ignore[assignment]
    engine.run()
    return ended(engine, answer, 0.0)


class SlowConstraint:
    """Allows anything, after a while."""

    is_complete = False

    def __init__(self, engine: HashEngine) -> None:
        self.engine = engine

    def masks(self) -> list[None]:
        self.engine.now += 0.05
        return [None]

    def prepare(self, draft: object = ()) -> None:
        pass

    def accept(self, token: int) -> None:
        pass

    def forced(self) -> list[int]:
        return []


def slow_sampling() -> Answer:
    engine = TimedEngine()
    answer = engine.add(prompt(5), 10)
    read = engine.host.read

    def slow(*arguments: Any) -> Any:
        engine.now += 0.05
        return read(*arguments)

    engine.host.read = slow
    engine.run()
    return ended(engine, answer, 0.0)


def slow_guesses() -> Answer:
    engine = TimedEngine()
    guesser = Guesser(engine)
    draft = guesser.draft

    def slow(*arguments: Any) -> None:
        engine.now += 0.05
        draft(*arguments)

    guesser.draft = slow  # type: ignore[method-assign]
    engine.core.speculator = guesser  # type: ignore[assignment]
    answer = engine.add(prompt(5), 20)
    engine.run()
    return ended(engine, answer, 0.0)


STAGED: dict[Callable[[], Answer], Cause] = {
    long_answer: "decode",
    cold_prompt: "prompt",
    changed_prompt: "prompt",
    full_engine: "queue",
    smaller_priority: "queue",
    full_arena: "room",
    preempted: "preempted",
    same_prompt: "same_prompt",
    slow_tier: "tiers",
    others_prompts: "other_prompts",
    others_answers: "other_answers",
    slow_mask: "mask",
    slow_sampling: "sampling",
    slow_guesses: "guesses",
}


@pytest.mark.parametrize("stage", STAGED, ids=lambda stage: stage.__name__)
def test_the_greatest_part_names_the_cause(stage: Callable[[], Answer]) -> None:
    spent = stage().request.answer.completion.spent
    assert spent is not None and slowest(spent) == STAGED[stage], spent
    assert spent.seconds.keys() <= CAUSES.keys()


@pytest.mark.parametrize("pipelines", [False, True], ids=["plain", "pipelined"])
def test_the_parts_add_up_whatever_happens(pipelines: bool) -> None:
    """Requests that come at any time, wait, are cancelled, and lose their blocks."""
    engine = TimedEngine(num_blocks=24, pipelines=pipelines)
    answers, added = [], []
    for number in range(12):
        added.append(engine.now)
        answers.append(engine.add(prompt(5 + 5 * (number % 5), number), 3 + 4 * (number % 4)))
        for _ in range(number % 4):
            engine.core.step()
        if number == 7:
            engine.core.cancel(answers[6].request)
    ends: dict[int, float] = {}
    while engine.core.step():
        ends |= {i: engine.now for i, a in enumerate(answers) if a.request.answer.is_done and i not in ends}
    for number, answer in enumerate(answers):
        spent = answer.request.answer.completion.spent
        assert spent is not None and min(spent.seconds.values(), default=0.0) >= 0.0
        if number in ends and number > 7:
            assert spent.total == pytest.approx(ends[number] - added[number], rel=0.2, abs=0.1), number


def test_steps_that_were_given_up_are_not_counted() -> None:
    """After they failed, nothing ran for a while: that is no time of the next step, beside which its mask is short."""
    engine = TimedEngine(pipelines=True)
    engine.add(prompt(5), 9)
    engine.core.step()
    engine.core.fail_all(RuntimeError("the loop failed"))
    engine.now += 100.0
    answer = engine.add(prompt(5, 9), 1)
    answer.request.answer.constraint = SlowConstraint(engine)  # type: ignore[assignment]
    engine.run()
    assert slowest(engine.spent(answer)) == "mask"


def test_a_prompt_that_differs_from_one_in_use() -> None:
    engine = TimedEngine()
    size = engine.pager.block_size
    tokens = prompt(5 * size + size - 1)
    engine.add(tokens, 9)
    engine.core.step()
    place = 5 * size + 1
    changed = engine.add([*tokens[:place], tokens[place] + 1, *prompt(9)], 2)
    engine.run()
    spent = engine.spent(changed)
    assert (spent.differs_at, spent.differing) == (place, (tokens[place] + 1, tokens[place]))


@pytest.mark.parametrize("pipelines", [False, True], ids=["plain", "pipelined"])
def test_a_last_part_of_one_token_is_reading(pipelines: bool) -> None:
    """Its step is the prompt's, and what follows the answer's own. The clock moves when the next step is launched."""
    engine = TimedEngine(max_tokens=16, pipelines=pipelines)
    answer = engine.add(prompt(17), 6)
    engine.run()
    spent, ahead = engine.spent(answer), pipelines * (STEP + TOKEN)
    assert spent.seconds["prompt"] == pytest.approx(2 * STEP + 17 * TOKEN + ahead)
    assert spent.seconds["decode"] == pytest.approx(5 * (STEP + TOKEN) - ahead) and "other_answers" not in spent.seconds
