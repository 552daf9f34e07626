"""Generation: batching, limits, ends, and giving everything back."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import ArenaFullError, HostError, RequestError
from mlxr.runtime.engine.errors import ModelClosedError, PromptTooLongError
from mlxr.runtime.engine.model import Model
from mlxr_tests.storyteller import BF16, Q8_0, storyteller_spec


@pytest.fixture(scope="module")
def small() -> Model:
    """Storyteller with limits that are easily reached: context 64, steps of 16 tokens, 3 sequences, 9 blocks of 16."""
    cache = {"num_blocks": 9, "max_sequences": 3}
    spec = storyteller_spec(model={"context": 64}, cache=cache, prefill_chunk=16, compute="exact")
    return mlxr.load(compile_spec(spec).artifact, Q8_0, host="cpu")


def launches(model: Model, label: str) -> int:
    """How often the kernel of a label was launched."""
    kernels = model.artifact.plan.programs["cpu"].kernels
    return sum(model.host.launches[kernel.name] for kernel in kernels if kernel.label == label)


@pytest.fixture(autouse=True)
def nothing_is_kept(small: Model) -> Iterator[None]:
    """Every test must leave the arena empty."""
    yield
    small.pager.check_integrity()
    assert small.pager.num_sequences == 0
    assert small.pager.num_free_blocks == 9


def ids(count: int, start: int = 300) -> list[int]:
    return [1, *range(start, start + count - 1)]


def test_sequences_do_not_disturb_each_other(small: Model) -> None:
    prompts = [ids(40), ids(3, 900), ids(17, 2000)]
    together = small.start(prompts, max_tokens=6, ignore_eos=True).finish()
    alone = [small.start([prompt], max_tokens=6, ignore_eos=True).finish()[0] for prompt in prompts]
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    assert len({tuple(a.token_ids) for a in together}) > 1


def test_a_prompt_longer_than_a_step_is_cut_into_chunks(small: Model) -> None:
    small.host.launches.clear()
    prompt = ids(40, 1200)
    answer = small.start([prompt], max_tokens=1, ignore_eos=True).finish()[0]
    assert launches(small, "embed") == 3, "40 tokens are three steps of at most 16"
    assert answer.token_ids == [int(np.argmax(small.logits(prompt)[-1]))]


def test_samples_share_the_prompt_and_differ(small: Model) -> None:
    small.host.launches.clear()
    sampling = mlxr.Sampling(temperature=1.5, seed=5, n=3)
    answers = small.start([ids(20, 1300)], max_tokens=8, sampling=sampling, ignore_eos=True).finish()
    assert len({tuple(a.token_ids) for a in answers}) == 3
    assert [a.cached_tokens for a in answers[1:]] == [19, 19], "the others wait for the first and read one token"
    assert launches(small, "copy_blocks"), "the shared, half-filled block is copied before the first write"
    sampling = mlxr.Sampling(temperature=1.5, seed=5)
    first = small.start([ids(20, 1300)], max_tokens=8, sampling=sampling, ignore_eos=True).finish()[0]
    assert first.token_ids == answers[0].token_ids


def test_greedy_samples_are_equal(small: Model) -> None:
    """Forked sequences read the same cache: a wrong copy would make them drift apart."""
    answers = small.start([ids(21)], max_tokens=12, sampling=mlxr.Sampling(n=3), ignore_eos=True).finish()
    alone = small.start([ids(21)], max_tokens=12, ignore_eos=True).finish()[0]
    assert [a.token_ids for a in answers] == [alone.token_ids] * 3


def test_it_stops_at_the_end_of_the_context(small: Model) -> None:
    answer = small.start([ids(60)], max_tokens=100, ignore_eos=True).finish()[0]
    assert (answer.prompt_tokens, len(answer.token_ids), answer.finish_reason) == (60, 4, "context")


def test_it_stops_at_max_tokens(small: Model) -> None:
    for prompt in (5, 61):
        answer = small.start([ids(prompt)], max_tokens=3, ignore_eos=True).finish()[0]
        assert (len(answer.token_ids), answer.finish_reason) == (3, "length")


def test_events_join_to_the_answer(small: Model) -> None:
    generation = small.start(["Once upon a time", "The"], max_tokens=9)
    events = list(generation)
    for index, answer in enumerate(generation.completions):
        mine = [e for e in events if e.index == index]
        assert [e.token_id for e in mine] == answer.token_ids
        assert "".join(e.text for e in mine) == answer.text
        assert [e.finish_reason for e in mine] == [None] * (len(mine) - 1) + [answer.finish_reason]
        assert [e.completion for e in mine[:-1]] == [None] * (len(mine) - 1) and mine[-1].completion is answer
        assert answer.usage == (answer.prompt_tokens, answer.cached_tokens, len(mine))
    assert small.tokenizer is not None
    whole = small.tokenizer.decode(small.encode("Once upon a time") + generation.completions[0].token_ids)
    assert whole == "Once upon a time" + generation.completions[0].text


def test_closing_a_stream_gives_its_blocks_back(small: Model) -> None:
    stream = small.stream("Once upon a time", max_tokens=30)
    next(stream)
    assert small.pager.num_sequences == 1
    stream.close()
    assert small.pager.num_sequences == 0
    assert list(stream) == []


def test_leaving_a_stream_frees_its_sequence_at_once(small: Model) -> None:
    """Without the garbage collector, which would find it late."""

    def fail() -> None:
        for _ in small.stream("Once upon a time", max_tokens=30):
            raise KeyError

    gc.disable()
    try:
        for _ in small.stream("Once upon a time", max_tokens=30):
            break
        assert small.pager.num_sequences == 0
        with pytest.raises(KeyError):
            fail()
        assert small.pager.num_sequences == 0
        stream = small.stream("Once upon a time", max_tokens=30)
        next(stream)
        assert small.pager.num_sequences == 1
        del stream
        assert small.pager.num_sequences == 0
        with small.start(["Once", "The"], max_tokens=30) as generation:
            next(generation)
        assert small.pager.num_sequences == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("host", ["cpu", "reference"])
def test_closing_a_model_frees_what_it_holds(host: str) -> None:
    artifact = compile_spec(
        storyteller_spec(model={"context": 64}, cache={"max_sequences": 2}, prefill_chunk=16)
    ).artifact
    gc.disable()
    try:
        with mlxr.load(artifact, Q8_0, host=host) as model:
            stream = model.stream([1, 403], max_tokens=30)
            next(stream)
            held = weakref.ref(model.host), weakref.ref(model.arena)
            assert "storyteller" in repr(model)
            chunks = model.logit_chunks([1, 403] * 30)
            next(chunks)
        assert [one() for one in held] == [None, None]
        with pytest.raises(RequestError, match="the model was closed before the answer ended"):
            list(stream)
        with pytest.raises(RequestError, match="the model is closed"):
            list(chunks)
        assert "closed" in repr(model)
        with pytest.raises(RequestError, match="the model is closed: load it again"):
            model.generate([1, 403])
        with pytest.raises(ModelClosedError):
            model.make_requests([[1, 403]], mlxr.Sampling(), print)
    finally:
        gc.enable()


def test_iterating_again_goes_on(small: Model) -> None:
    generation = small.start([ids(5)], max_tokens=6, ignore_eos=True)
    first = next(iter(generation))
    rest = list(generation)
    assert [first.token_id, *(e.token_id for e in rest)] == generation.completions[0].token_ids
    assert len(rest) == 5
    assert generation.finish() == generation.completions
    assert len(generation.completions[0].token_ids) == 6


@pytest.mark.long
def test_a_prompt_waits_while_the_arena_is_full(small: Model) -> None:
    """Three prompts of four blocks each, and nine blocks: the third starts when another has ended."""
    prompts = [ids(50), ids(50, 900), ids(50, 1500)]
    together = small.start(prompts, max_tokens=3, ignore_eos=True).finish()
    alone = [small.start([prompt], max_tokens=3, ignore_eos=True).finish()[0] for prompt in prompts]
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]


def test_ids_beyond_the_tokenizer_have_no_text_and_leak_nothing(small: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's vocabulary may be padded beyond its tokenizer's."""
    assert small.tokenizer is not None
    whole = small.start([ids(5, 4000)], max_tokens=4, ignore_eos=True).finish()[0]
    monkeypatch.setattr(small.tokenizer, "vocab_size", 260)
    padded = small.start([ids(5, 4000)], max_tokens=4, ignore_eos=True).finish()[0]
    assert padded.token_ids == whole.token_ids
    assert padded.text == ""


def test_a_step_that_fails_leaks_nothing(small: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch: object) -> None:
        raise HostError("the step failed")

    monkeypatch.setattr(small.host, "step", fail)
    for _ in range(5):
        with pytest.raises(HostError, match="the step failed"):
            small.start([ids(5)], max_tokens=4, sampling=mlxr.Sampling(n=3)).finish()


def test_requests_that_need_more_blocks_than_there_are_take_turns(small: Model) -> None:
    """They begin with two blocks each, and want four: twelve of nine."""
    prompts, before = [ids(20, 350), ids(20, 950), ids(20, 1550)], small.core.stats().preemptions
    together = small.start(prompts, max_tokens=44, ignore_eos=True).finish()
    assert small.core.stats().preemptions > before
    alone = [small.start([prompt], max_tokens=44, ignore_eos=True).finish()[0] for prompt in prompts]
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]


def test_a_request_that_can_get_no_more_blocks_is_an_error_and_no_other(small: Model) -> None:
    """Somebody else, who uses the pager without the engine, has all blocks but three."""
    other = small.pager.add_sequence()
    small.pager.append(other, 33)
    third = small.pager.add_sequence()
    small.pager.append(third, 33)
    try:
        long, short = (
            small.start([ids(20, start)], max_tokens=most, ignore_eos=True) for start, most in ((300, 99), (900, 4))
        )
        events = []
        with pytest.raises(ArenaFullError, match="49 tokens of a request need 4 blocks of 16 tokens; 0 of 9 are free"):
            for event in long:
                events.append(event)
        assert len(events) == len(long.completions[0].token_ids) == 29
        assert len(short.finish()[0].token_ids) == 4
    finally:
        small.pager.free(other)
        small.pager.free(third)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([ids(64)], {}, "the prompt has 64 tokens; the context is 64"),
        ([[]], {}, "no tokens"),
        ([], {}, "no prompt"),
        ([[1, 4096]], {}, "token id 4096 is outside the vocabulary of 4096"),
        ([[1, -1]], {}, "token id -1 is outside"),
        ([[1]], {"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_bad_requests_are_refused(
    small: Model, prompts: list[list[int]], options: dict[str, int], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        small.start(prompts, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([None], {}, r"a prompt is text or a list of token ids, not None; start\(\) takes several"),
        ([["a", "b"]], {}, "a prompt is text or a list of token ids, not .*, of type list"),
        ([[1.5]], {}, "a prompt is text or a list of token ids"),
        ([b"x"], {}, "a prompt is text or a list of token ids, not b'x', of type bytes"),
        ("Once", {}, "prompts is 'Once', of type str; expected a list of prompts"),
        (5, {}, "prompts is 5, of type int; expected a list of prompts"),
        ([[1]], {"max_tokens": 2.5}, "max_tokens is 2.5, of type float; expected a whole number"),
        ([[1]], {"max_tokens": True}, "max_tokens is True, of type bool; expected a whole number"),
        ([[1]], {"sampling": 0.7}, r"sampling is 0.7, of type float; expected a mlxr\.Sampling"),
    ],
)
def test_wrong_types_are_told_in_words(small: Model, prompts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        small.start(prompts, **options)


def test_a_prompt_that_is_far_too_long_is_refused_before_it_is_encoded(
    small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert small.tokenizer is not None
    monkeypatch.setattr(small.tokenizer, "_encode", None)
    with pytest.raises(PromptTooLongError, match=r"the prompt has 10000000 characters, so 714286 tokens or more; .*64"):
        small.stream("word " * 2_000_000)


def test_whole_numbers_of_numpy_are_taken(small: Model) -> None:
    answer = small.start([np.array(ids(5))], max_tokens=np.int64(2), ignore_eos=True).finish()[0]
    assert len(answer.token_ids) == 2


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(BF16)
    model = mlxr.load(mlxr.compile(storyteller_spec()), tmp_path / "model.safetensors", host="reference")
    with pytest.raises(RequestError, match=r"text needs a tokenizer: .*tokenizer\.model"):
        model.generate("Once")
    answer = model.generate([1, 403], max_tokens=2)
    assert (len(answer.token_ids), answer.text) == (2, "")
