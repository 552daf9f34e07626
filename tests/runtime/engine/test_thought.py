"""Limits on thoughts: the text that ends one comes after exactly so many tokens, and the answer is the model's own.

What must follow is what the same model says, without a limit, to the prompt with the thought and its end in it.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine import launch_lengths
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.sampling import Sampling, ThoughtLimit
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.engine.thought import Thought
from mlxr_tests.chat_formats import byte_tokenizer
from mlxr_tests.few import few
from mlxr_tests.storyteller import TINY, tiny_spec

PROMPT = [1, *range(300, 309)]
LIMIT = ThoughtLimit(0, "<think>\n", "\n</think>\n\n", "</think>", is_open=True)
SAMPLED = Sampling(temperature=1.0, seed=5, max_tokens=24)
SPOKEN = Sampling(max_tokens=24)
CLOSED_IN_GRAMMAR = 'start: thought /[ \\n]{0,4}/ ("yes" | "no")\nthought[lazy]: /(.|\\n)*/ "</think>"'


@pytest.fixture(scope="module", params=["cpu", "pipelined"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    """640 tokens, steps of 16, 3 sequences."""
    cache = {"num_blocks": 12, "max_sequences": 3, "mode": "paged"}
    spec = tiny_spec(model={"context": 64}, cache=cache, prefill_chunk=16, compute="exact", deterministic=True)
    host = "reference" if request.param == "pipelined" else request.param
    with mlxr.load(compile_spec(spec).artifact, TINY, host=host) as loaded:
        if request.param == "pipelined":
            setattr(loaded.host, "pipelines", True)  # noqa: B010 (of the class, as far as types go)
            loaded.host.most_steps = 3
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch_lengths, "_LAUNCH_SECONDS", 1e9)
            yield loaded


class AllRight(Speculator):
    """Guesses what the answer without a limit says."""

    def __init__(self, right: list[int]) -> None:
        super().__init__()
        self._right = right

    def propose(self, texts, tokens, room):  # type: ignore[no-untyped-def]
        return [self._right[len(text.tokens) :][: min(text.most, room, 5)] for text in texts]


def answers(model: Model, *samplings: Sampling, prompt: list[int] = PROMPT) -> list[Completion]:
    """What requests of one batch get, and what their events say."""
    generations = [model.start([prompt], sampling=sampling) for sampling in samplings]
    texts = [""] * len(generations)
    open_ones = dict(enumerate(generations))
    while open_ones:
        for i, generation in list(open_ones.items()):
            if (event := next(generation, None)) is None:
                del open_ones[i]
            else:
                texts[i] += event.text
    completions = [generation.completions[0] for generation in generations]
    assert texts == [completion.text for completion in completions]
    return completions


def closing(model: Model) -> list[int]:
    tokens = model.require_tokenizer().encode("a\n</think>\n\n", add_special=False)
    return tokens[len(model.require_tokenizer().encode("a", add_special=False)) :]


@pytest.mark.parametrize("budget", few([0, 1, 4], [0, 4]))
def test_the_end_is_forced_and_the_answer_follows(model: Model, budget: int) -> None:
    (free,) = answers(model, SPOKEN)
    expected = [*free.token_ids[:budget], *closing(model)]
    (after,) = answers(model, replace(SPOKEN, max_tokens=24 - len(expected)), prompt=[*PROMPT, *expected])
    limited = replace(SPOKEN, thought=replace(LIMIT, tokens=budget))
    before = model.core.stats().forced_tokens
    (alone,) = answers(model, limited)
    assert alone.token_ids == [*expected, *after.token_ids]
    assert alone.finish_reason == after.finish_reason
    assert model.core.stats().forced_tokens >= before + len(closing(model)) - 1, "computed in one step"
    beside, other, sampled = answers(model, limited, SPOKEN, replace(SAMPLED, thought=limited.thought))
    assert (beside.token_ids, other.token_ids) == (alone.token_ids, free.token_ids)
    assert sampled.token_ids == answers(model, replace(SAMPLED, thought=limited.thought))[0].token_ids
    told = answers(model, replace(limited, logprobs=1))[0]
    assert told.token_ids == alone.token_ids and len(told.logprobs) == len(told.token_ids)
    model.core.speculator = AllRight([*PROMPT, *free.token_ids])
    try:
        assert answers(model, limited)[0].token_ids == alone.token_ids
    finally:
        model.core.speculator = None


def test_a_thought_of_the_models_own_is_ended_and_others_are_left_alone(model: Model) -> None:
    (free,) = answers(model, SPOKEN)
    first = free.text[:6]
    limit = replace(LIMIT, tokens=2, opening=f"{first}\n", is_open=False)
    own = answers(model, replace(SPOKEN, thought=limit))[0]
    begun, _, rest = own.text.partition("\n</think>\n\n")
    assert begun.startswith(first) and rest and free.text.startswith(begun)
    for never in (replace(limit, opening="<think>"), replace(LIMIT, tokens=99)):
        assert answers(model, replace(SPOKEN, thought=never))[0].token_ids == free.token_ids


def test_a_constraint_holds_for_the_answer(model: Model) -> None:
    limited = Sampling(max_tokens=40, grammar=CLOSED_IN_GRAMMAR, thought=replace(LIMIT, tokens=3))
    for completion in answers(model, limited, replace(limited, temperature=1.0, seed=3), replace(limited, logprobs=0)):
        thought, _, answer = completion.text.partition("\n</think>\n\n")
        assert answer.strip() in ("yes", "no") and completion.finish_reason == "stop" and thought


def followed(limit: ThoughtLimit, text: str, *control: str) -> str:
    """What is written when a model says one letter after the other of a text, where nothing is forced."""
    tokenizer = byte_tokenizer(control)
    thought, said, written = Thought(limit, tokenizer), tokenizer.encode(text, parse_special=True), []
    for token in said:
        while thought.forced:
            written.append(thought.forced[0])
            thought.accept(thought.forced[0])
        written.append(token)
        if thought.is_over:
            continue
        thought.accept(token)
    names = {token_id: name for name, token_id in tokenizer.control_tokens.items()}
    return "".join(f"{names[t]}" if t in names else tokenizer.decode([t]) for t in written)


@pytest.mark.parametrize(
    ("limit", "said", "written"),
    [
        (replace(LIMIT, tokens=2), "abcd", "ab\n</think>\n\ncd"),
        (replace(LIMIT, tokens=2), "a\ncd", "a\n</think>\n\ncd"),
        (replace(LIMIT, tokens=2, is_open=False), " <think>abcd", " <think>ab\n</think>\n\ncd"),
        (replace(LIMIT, is_open=False), "<think>abc", "<think>\n\n</think>\n\nabc"),
        (replace(LIMIT, is_open=False), "Say <think>abc", "Say <think>abc"),
        (replace(LIMIT, tokens=3), "a</bc", "a</think>\n\nbc"),  # it had begun
        (replace(LIMIT, tokens=20), "a</think>b<think>" + 30 * "c", "a</think>b<think>" + 30 * "c"),
    ],
)
def test_where_a_thought_ends(limit: ThoughtLimit, said: str, written: str) -> None:
    assert followed(limit, said) == written


PARTS = ("<|open|>", "<|close|>", "<|sep|>")
OF_PARTS = ThoughtLimit(2, "<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>say<|sep|>", "<|close|>think<|sep|>")


@pytest.mark.parametrize("tokens", range(5))
def test_an_end_marker_that_has_begun_is_completed(tokens: int) -> None:
    begun = "a<|close|>thx"
    parts = ["a", "<|close|>", "t", "h"]
    expected = f"{OF_PARTS.opening}{''.join(parts[: min(tokens, 4)])}"
    rest = OF_PARTS.closing if tokens < 2 else OF_PARTS.closing.removeprefix("".join(parts[1:tokens]))
    written = followed(replace(OF_PARTS, tokens=tokens), OF_PARTS.opening + begun, *PARTS)
    assert written == f"{expected}{rest}{''.join(parts[tokens:])}x"


def test_text_that_spells_a_control_token_ends_nothing() -> None:
    tokenizer = byte_tokenizer(["<|end|>"])
    thought = Thought(ThoughtLimit(9, "<think>", "<|end|>", "<|end|>", is_open=True), tokenizer)
    for token in tokenizer.encode("<|end|>ab"):
        assert not thought.forced and not thought.is_over
        thought.accept(token)
    assert [tokenizer.token_text(token) for token in thought.forced] == ["<|end|>"]


def test_no_character_is_cut() -> None:
    tokenizer = byte_tokenizer()
    thought = Thought(replace(LIMIT, tokens=1), tokenizer)
    for token in tokenizer.encode("€"):
        assert not thought.forced
        thought.accept(token)
    assert thought.forced


def test_channels_may_open_again_once() -> None:
    names = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    begin, again = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>"
    limit = ThoughtLimit(1, begin, again, "<|end|>", reopens=True, final_closing=f"{again}final<|message|>")
    assert followed(limit, f"{begin}abanalysis<|message|>cd", *names) == (f"{begin}a{again}banalysis<|message|>cd")
    assert followed(limit, f"{begin}aanalysis<|message|>cd", *names) == (
        f"{begin}a{again}analysis<|message|>{again}final<|message|>cd"
    )


def test_what_is_no_limit_is_refused(model: Model) -> None:
    with pytest.raises(RequestError, match="expected 0 or more"):
        replace(LIMIT, tokens=-1)
    with pytest.raises(RequestError, match="needs the text that begins them"):
        replace(LIMIT, end_marker="x")
    with pytest.raises(TypeError, match="thought is 3"):
        Sampling(thought=3)  # type: ignore[arg-type]
