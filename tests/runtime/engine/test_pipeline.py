"""Pipelined generation: what it launches when, and the same events as one step after another, at every edge."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine import launch_lengths
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.generation import Generation
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.make_requests import RequestMaker, Terms
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.host import Logits
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr_tests.few import few, few_of
from mlxr_tests.specs import compiled, random_weights, small_spec
from mlxr_tests.storyteller import Q8_0

GREEDY = Sampling()
SAMPLED = Sampling(temperature=1.2, top_k=30, top_p=0.95, min_p=0.01, seed=11)


class LoggingHost(ReferenceHost):
    """Tells what happens in which order: `launch n` and `read n`, by the number of the step, and what binds what."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log: list[str] = []
        self.batches: list[Batch] = []
        self.started: set[int] = set()
        self.chain: list[mx.array] = []
        self.broken_step = -1
        self._steps: list[tuple[Logits, set[int]]] = []

    def step(self, batch: Batch) -> mx.array:
        self.log.append(f"launch {len(self.batches)}")
        self.batches.append(batch)
        if self.chain:
            assert self.arena.token is self.chain[-1], "a step must come after all that were launched before it"
        logits = super().step(batch)
        if len(self.batches) - 1 == self.broken_step:
            logits = logits * mx.array(np.nan)
        self.arena.token = self.arena.token + 0  # the source graph makes no token
        self.chain.append(self.arena.token)
        return logits

    def start(self, *results: mx.array) -> None:
        assert any(result is self.arena.token for result in results), "the arena's writes belong to the step"
        super().start(*results)

    def to_read_together(self, results: Sequence[mx.array]) -> list[mx.array]:
        return [mx.concatenate(super().to_read_together(results))]  # so that there is one line in the log

    def read(self, result: Logits) -> np.ndarray:
        found = super().read(result)
        if found.dtype == np.int32 or not self.pipelines:
            self.log.append("read")
        return found


class PipelinedHost(LoggingHost):
    """The same, taken for one that pipelines."""

    pipelines = True


class HastyHost(PipelinedHost):
    """The same, taken for one whose steps are so short that three are launched at once."""

    most_steps = 3


class Ends:
    """The part of a tokenizer that tells the ids which end an answer."""

    vocab_size = 0

    def __init__(self, *eos_ids: int) -> None:
        self.eos_ids = eos_ids

    def stream_decoder(self) -> None:
        return None


class Engine:
    """A host with an arena and a pager of its own."""

    def __init__(self, host_class: type[LoggingHost], **cache: Any) -> None:
        cache = {"dtype": "f32", "block_size": 4, "max_sequences": 3} | cache
        spec = small_spec(model__num_layers=1, cache=cache, prefill_chunk=16)
        artifact = compiled(spec)
        self.arena = Arena(artifact.plan.arena)
        self.host = host_class(artifact, random_weights(artifact.plan), self.arena)
        self.pager = Pager.from_geometry(artifact.plan.arena)
        self.core = EngineCore(self.host, self.pager)
        self._salts = count()

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        ends: Sequence[int] = (),
        *,
        sampling: Sampling = GREEDY,
        salt: str | None = None,
        **options: Any,
    ) -> Generation:
        """A generation of at most 12 tokens; without a salt, it shares no blocks with others."""
        sampling = replace(sampling, **{"max_tokens": 12} | options)
        maker = RequestMaker(self.host.plan, self.host.plan.arena, Ends(*ends), ("test",))  # type: ignore[arg-type]
        terms = Terms(salt=str(next(self._salts)) if salt is None else salt)
        events: deque[Event | BaseException] = deque()
        now, listen = self.core.clock(), events.append
        requests = [r for i, p in enumerate(prompts) for r in maker.make(i, p, sampling, listen, now, terms)]
        return Generation(self.core, requests, events)


class Pair:
    """One engine that pipelines, one that does not; what they generate is compared."""

    def __init__(self, host_class: type[LoggingHost] = PipelinedHost, **cache: Any) -> None:
        self.ahead, self.plain = Engine(host_class, **cache), Engine(LoggingHost, **cache)

    def events(self, *arguments: Any, **options: Any) -> list[Event]:
        """The events of both, which are the same; and the pipelined one took at most one step more."""
        steps = [len(engine.host.batches) for engine in (self.ahead, self.plain)]
        ahead, plain = (engine.start(*arguments, **options) for engine in (self.ahead, self.plain))
        events = list(ahead)
        by_answer = [sorted(some, key=lambda event: event.index) for some in (events, list(plain))]
        assert by_answer[0] == by_answer[1]
        finished = [[replace(c, cached_tokens=0) for c in g.completions] for g in (ahead, plain)]
        assert finished[0] == finished[1], "what is cached when a request joins depends on the step"
        self.check_empty()
        taken = [len(e.host.batches) - before for e, before in zip((self.ahead, self.plain), steps, strict=True)]
        # Each answer that ends unforeseen, or that waits for another one, may cost a step.
        most = 1 if len(ahead.completions) == 1 else 2 * len(ahead.completions)
        most *= 2 * self.ahead.host.most_steps - 1
        least = taken[1] - (most if most > 1 else 0)
        assert least <= taken[0] <= taken[1] + most, f"{taken} steps pipelined and not"
        self.wasted = taken[0] - taken[1]
        return events

    def check_empty(self) -> None:
        for engine in (self.ahead, self.plain):
            engine.pager.check_integrity()
            assert engine.pager.num_sequences == 0
            assert engine.pager.num_free_blocks == engine.pager.num_blocks


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair()


@pytest.fixture(autouse=True)
def fresh_logs(pair: Pair) -> Iterator[None]:
    for engine in (pair.ahead, pair.plain):
        engine.host.log.clear()
        engine.host.batches.clear()
    yield
    pair.check_empty()


def prompt(count: int, start: int = 3) -> list[int]:
    return [(start + 7 * i) % 61 for i in range(count)]


def of(events: Sequence[Event], index: int = 0) -> list[int]:
    return [event.token_id for event in events if event.index == index]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_next_step_is_launched_before_a_token_is_read(pair: Pair, sampling: Sampling) -> None:
    pair.events([prompt(5)], max_tokens=4, sampling=sampling)
    assert pair.ahead.host.log == ["launch 0", "launch 1", "read", "launch 2", "read", "launch 3", "read", "read"]
    assert pair.plain.host.log == ["launch 0", "read", "launch 1", "read", "launch 2", "read", "launch 3", "read"]
    assert [isinstance(batch.tokens, mx.array) for batch in pair.ahead.host.batches] == [False, True, True, True]
    assert not pair.wasted, "that max_tokens ends the answer is known ahead"


def test_the_consumer_has_a_token_while_the_next_step_is_under_way(pair: Pair) -> None:
    generation = pair.ahead.start([prompt(5)])
    for launched, _ in enumerate(generation, start=2):
        assert len(pair.ahead.host.batches) == min(launched, 12)


def test_steps_taken_ahead_are_laid_out_as_others() -> None:
    """All but the token ids is known before they are, and once they are, they are the same too."""
    pair = Pair()
    pair.events([prompt(5), prompt(9, 20)], max_tokens=9)
    for ahead, plain in zip(pair.ahead.host.batches, pair.plain.host.batches, strict=True):
        assert np.array(ahead.tokens).tolist() == np.array(plain.tokens).tolist()
        for name in ("positions", "slots", "query_start", "context_lens", "block_tables", "logit_rows", "query_tiles"):
            np.testing.assert_array_equal(getattr(ahead, name), getattr(plain, name), name)


@pytest.mark.parametrize(("sampling", "n"), few_of([GREEDY, SAMPLED], [1, 3]))
def test_an_end_found_late_costs_one_step(pair: Pair, sampling: Sampling, n: int) -> None:
    options = {"sampling": sampling, "n": n}
    whole = pair.events([prompt(6)], **options)
    seen: set[int] = set()
    for token in of(whole):
        if token in seen:
            continue
        seen.add(token)
        events = pair.events([prompt(6)], [token], **options)
        first = of(events)
        assert first == of(whole)[: len(first)] and first[-1] == token
        last = [event for event in events if event.index == 0][-1]
        assert last.finish_reason == "stop"
        if n == 1:
            assert pair.wasted == (len(first) < 12), "at the last token no step was launched ahead"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setattr(launch_lengths, "_LAUNCH_SECONDS", 1e9)
    return Pair(HastyHost)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_several_short_steps_are_launched_at_once(hasty: Pair, sampling: Sampling) -> None:
    hasty.events([prompt(5)], max_tokens=8, sampling=sampling)
    log = "".join(entry[0] for entry in hasty.ahead.host.log)
    assert log == "llrlrlrlrlllrr", "at first nobody knows how long a step takes"
    assert not hasty.wasted
    records = list(hasty.ahead.core.recent_steps)
    assert len(records) == hasty.ahead.core.stats().steps == 8 and all(r.decoding == 1 for r in records[1:])
    assert all(b.end - a.end == pytest.approx(b.seconds) for a, b in pairwise(records[-3:]))


def test_several_steps_are_laid_out_as_single_ones(hasty: Pair) -> None:
    """Of several sequences, each of which comes to a new block at another of the steps."""
    hasty.events([prompt(5), prompt(6, 20), prompt(9, 40)], max_tokens=12)
    assert len(hasty.ahead.host.batches) == len(hasty.plain.host.batches)
    for ahead, plain in zip(hasty.ahead.host.batches, hasty.plain.host.batches, strict=True):
        assert np.array(ahead.tokens).tolist() == np.array(plain.tokens).tolist()
        for name in ("positions", "query_start", "context_lens", "logit_rows", "query_tiles"):
            np.testing.assert_array_equal(getattr(ahead, name), getattr(plain, name), name)
        if ahead.is_decode:
            blocks = ahead.block_tables[np.arange(ahead.num_seqs), ahead.positions // 4]
            assert ahead.slots.tolist() == (4 * blocks + ahead.positions % 4).tolist()


def test_while_a_request_waits_steps_are_launched_one_by_one(hasty: Pair) -> None:
    core, counts = hasty.ahead.core, {True: {0}, False: {0}}
    for _ in hasty.ahead.start([prompt(5, 20 * i) for i in range(4)]):
        counts[bool(core.scheduler.waiting)].add(core._ahead.count if core._ahead else 0)
    assert max(counts[True]) == 1 and max(counts[False]) == 3


def test_rows_that_ask_for_more_than_tokens_take_single_steps(hasty: Pair) -> None:
    for options in ({"logprobs": 1}, {"logit_bias": {5: 1.0}}, {"repetition_penalty": 1.2}):
        hasty.ahead.start([prompt(5)], max_tokens=8, sampling=replace(SAMPLED, **options)).finish()
        assert "lll" not in "".join(entry[0] for entry in hasty.ahead.host.log)


def test_a_broken_row_among_several_steps_ends_its_request_alone(hasty: Pair) -> None:
    """The first step of a launch of three is right, the second one is broken."""
    generation, hasty.ahead.host.broken_step = hasty.ahead.start([prompt(5)], max_tokens=12), 4
    tokens = [next(generation).token_id for _ in range(4)]
    with pytest.raises(HostError, match="NaN"):
        next(generation)
    alone = hasty.ahead.start([prompt(5)], max_tokens=12)
    hasty.ahead.host.broken_step = -1
    assert [event.token_id for event in alone][:4] == tokens
    hasty.check_empty()


def test_ends_found_late_cost_the_steps_ahead(hasty: Pair) -> None:
    prompts = [prompt(6), prompt(11, 30), prompt(3, 50)]
    whole = hasty.events(prompts, sampling=SAMPLED)
    for index in range(3):
        events = hasty.events(prompts, [of(whole, index)[5]], sampling=SAMPLED)
        assert "stop" in {event.finish_reason for event in events}
    alone = of(hasty.events([prompt(6)], sampling=SAMPLED))
    second = next(token for i, token in enumerate(alone[:9]) if i % 3 == 2 and token not in alone[:i])
    hasty.events([prompt(6)], [second], sampling=SAMPLED)
    assert hasty.wasted == 4, "one of the launch whose second step gave the end, and three of the one after it"
    assert not hasty.ahead.core.step(), "nobody waits for steps that only an answer had which has ended"


def test_one_sequence_ends_and_the_others_go_on(pair: Pair) -> None:
    prompts = [prompt(6), prompt(11, 30), prompt(3, 50)]
    whole = pair.events(prompts, sampling=SAMPLED)
    for index in range(3):
        end = of(whole, index)[4]
        events = pair.events(prompts, [end], sampling=SAMPLED)
        stopped = [event.index for event in events if event.finish_reason == "stop"]
        assert index in stopped
        for other in {0, 1, 2} - set(stopped):
            assert of(events, other) == of(whole, other)


def test_a_wasted_step_comes_before_what_the_new_owner_of_its_block_writes() -> None:
    """The block of the step too many is given to a prompt that waited; `LoggingHost` checks that each step binds the
    token which the one before made, so the late write cannot overtake."""
    pair = Pair(num_blocks=10, max_sequences=2)
    ended = of(pair.events([prompt(7)]))[1]
    pair.ahead.host.batches.clear()
    # The first is at 8 tokens, two full blocks, when it ends: the step too many takes a third one.
    prompts = [prompt(7), prompt(8, 40)]
    alone = [pair.events([p], [ended]) for p in prompts]
    pair.ahead.host.batches.clear()
    first = pair.ahead.start(prompts[:1], [ended])
    event = next(iter(first))
    assert event.finish_reason is None
    events = [event, *first]
    assert events == alone[0]
    late = pair.ahead.host.batches[-1]
    assert late.context_lens.tolist() == [9], "the step too many wrote a ninth token"
    assert pair.ahead.pager.num_sequences == 0
    second = list(pair.ahead.start(prompts[1:], [ended]))
    owned = {slot for batch in pair.ahead.host.batches[3:] for slot in batch.slots.tolist()}
    assert set(late.slots.tolist()) <= owned, "the new sequence must get that block for this to mean anything"
    assert second == alone[1]


@pytest.mark.parametrize("length", [1, 4, 8, 16, 17, 33, 39])
def test_the_end_of_the_context(pair: Pair, length: int) -> None:
    events = pair.events([prompt(length)], max_tokens=100)
    assert len(events) == 40 - length and events[-1].finish_reason == "context"
    assert not pair.wasted


def test_requests_join_and_leave_without_a_pause(pair: Pair) -> None:
    """Each step is launched before the tokens of the one before it are read, whoever takes part in it."""
    events = pair.events([prompt(35), prompt(2, 9), prompt(20, 17)], max_tokens=5, sampling=SAMPLED)
    assert [len(of(events, index)) for index in range(3)] == [5, 5, 5]
    log = pair.ahead.host.log
    first_read = log.index("read")
    assert log[:first_read] == [f"launch {step}" for step in range(first_read)] and first_read > 1
    launched = 0
    for entry in log:
        launched += entry != "read"
    reads = log.count("read")
    assert log[first_read:-1].count("read") == reads - 1
    for i, entry in enumerate(log[first_read + 1 : -2], start=first_read + 1):
        assert (entry == "read") != (log[i - 1] == "read"), f"{log}: launches and reads take turns"
    mixed = [batch for batch in pair.ahead.host.batches if isinstance(batch.tokens, mx.array) and not batch.is_decode]
    assert mixed, "a step has tokens that are on the device and tokens of a prompt"


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [6, 8])
def test_samples_of_one_prompt(pair: Pair, sampling: Sampling, length: int) -> None:
    """The step that ends the prompt draws for all of them, and the next one is launched with their blocks shared."""
    events = pair.events([prompt(length)], n=3, sampling=sampling)
    assert (len({tuple(of(events, index)) for index in range(3)}) == 1) == (sampling is GREEDY)
    assert pair.ahead.host.log[:3] == ["launch 0", "launch 1", "read"]


def test_prompts_wait_for_room_that_the_end_of_others_gives() -> None:
    pair = Pair(num_blocks=12, max_sequences=3)
    prompts = [prompt(14), prompt(18, 30), prompt(22, 50)]
    for sampling in (GREEDY, SAMPLED):
        whole = pair.events(prompts, sampling=sampling, max_tokens=6)
        assert sorted(Counter(event.index for event in whole).values()) == [6, 6, 6]
        for end in {*of(whole, 0)[:5], *of(whole, 1)[:3]}:
            pair.events(prompts, [end], sampling=sampling, max_tokens=6)


def test_preempted_requests_give_the_tokens_that_they_give_alone() -> None:
    """Two prompts of five blocks in an arena of ten grow to ten blocks each."""
    for sampling in (GREEDY, SAMPLED):
        pair = Pair(num_blocks=10, max_sequences=2)
        prompts = [prompt(9), prompt(10, 30)]
        together = pair.events(prompts, max_tokens=30, sampling=sampling)
        for engine in (pair.ahead, pair.plain):
            assert engine.core.stats().preemptions
        for index in range(2):
            alone = pair.events(prompts[index : index + 1], max_tokens=30, sampling=sampling)
            assert of(together, index) == of(alone)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_closing_early_gives_everything_back(pair: Pair, taken: int) -> None:
    generation = pair.ahead.start([prompt(6), prompt(13, 40)], n=1, sampling=SAMPLED)
    events = iter(generation)
    for _ in range(taken):
        next(events)
    generation.close()
    pair.check_empty()
    pair.events([prompt(6), prompt(13, 40)], sampling=SAMPLED)


def test_an_interruption_while_waiting_gives_everything_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = pair.ahead.start([prompt(6)])
    events = iter(generation)
    next(events)

    def interrupt(result: Logits) -> np.ndarray:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pair.ahead.host, "read", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(events)
    pair.check_empty()
    pair.events([prompt(6)])


def test_two_generations_take_turns(pair: Pair) -> None:
    """Each has a step under way while the other launches."""
    alone = [pair.events([p], sampling=SAMPLED) for p in (prompt(6), prompt(9, 40))]
    both = [iter(pair.ahead.start([p], sampling=SAMPLED)) for p in (prompt(6), prompt(9, 40))]
    assert [list(turn) for turn in zip(*zip(*both, strict=True), strict=True)] == alone


@pytest.mark.parametrize("taken", [1, 3, 12])
def test_the_prefix_cache_has_what_it_would_have_without(pair: Pair, taken: int) -> None:
    """Also when the step too many has put the end-of-sequence token into the arena, or the next token after a close."""
    whole = of(pair.events([prompt(6)]))
    first = whole.index(whole[taken - 1]) + 1
    for ends in ([], [whole[taken - 1]]):
        num_tokens = first if ends else taken
        for engine in (pair.ahead, pair.plain):
            salt = f"{taken}{ends}"
            generation = engine.start([prompt(6)], ends, salt=salt)
            for _, _event in zip(range(num_tokens), generation, strict=False):
                pass
            generation.close()
            again = [*prompt(6), *whole[:num_tokens], 7, 8]
            (hit,) = engine.start([again], salt=salt).finish()
            (miss,) = engine.start([again]).finish()
            assert hit.cached_tokens == 6 + num_tokens - 1, "the newest token of an answer is not in the arena"
            assert hit.token_ids == miss.token_ids


def test_broken_logits_are_refused_and_nothing_is_kept(pair: Pair) -> None:
    messages = []
    for engine in (pair.ahead, pair.plain):
        engine.host.broken_step = 1
        with pytest.raises(HostError, match="the model produced a NaN logit") as error:
            engine.start([prompt(6), prompt(9, 40)], salt="broken").finish()
        messages.append(str(error.value))
        engine.host.broken_step = -1
        (again,) = engine.start([prompt(30)], salt="broken", max_tokens=1).finish()
        assert again.cached_tokens <= 4, "what a step computed whose logits are broken is not found again"
    assert messages[0] == messages[1]


@pytest.mark.long
def test_many_small_generations_with_everything_at_once() -> None:
    rng = np.random.default_rng(7)
    pair = Pair(num_blocks=14)
    wasted = 0
    for number in range(60):
        count = int(rng.integers(1, 4))
        prompts = [rng.integers(0, 61, rng.integers(1, 20)).tolist() for _ in range(count)]
        sampling = Sampling(temperature=float(rng.choice([0, 0.7, 1.5])), top_k=int(rng.choice([0, 9])), seed=number)
        options = {"max_tokens": int(rng.integers(1, 9)), "sampling": sampling}
        if count == 1:
            options["n"] = int(rng.integers(1, 4))
        pair.events(prompts, rng.integers(0, 61, 4).tolist(), **options)
        wasted += pair.wasted
    assert wasted > 3, "ends must come unforeseen for this to mean anything"


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "dry_multiplier": 2.0, "dry_breakers": ()},
        {"min_tokens": 5, "logit_bias": {9: 4.0, 12: 3.0}, "typical_p": 0.9},
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_options_that_change_logits(pair: Pair, options: dict[str, Any], temperature: float) -> None:
    """Penalties need the tokens of the step before; bias, minimum length and filters do not."""
    prompts, ends = [prompt(5), prompt(20, 40)], [9, 12, 17]
    sampling = Sampling(temperature=temperature, seed=4, **options)
    events = pair.events(prompts, ends, sampling=sampling)
    plain = pair.events(prompts, ends, sampling=Sampling(temperature=temperature, seed=4))
    assert [of(events, i) for i in range(2)] != [of(plain, i) for i in range(2)]
    assert all(len(of(events, i)) > sampling.min_tokens for i in range(2)) or not sampling.min_tokens


@pytest.mark.parametrize("host", few(["cpu", "sim", "reference"], ["cpu", "reference"]))
def test_every_host_takes_token_ids_that_are_on_the_device(host: str) -> None:
    model = mlxr.load(mlxr.compile("storyteller"), Q8_0, host=host)
    logits = []
    for tokens in (None, mx.array([0, 299, 300]) + 1):
        seq_id = model.pager.add_sequence()
        ids = [1, 300, 301] if tokens is None else [0, 0, 0]
        made = launch_step(model.host, model.pager, [BatchRequest(seq_id, ids, 0)], tokens)
        logits.append(model.host.read(made).copy())
        model.pager.free(seq_id)
    np.testing.assert_array_equal(*logits)
