"""Prompts that go on where the last one ended: what is reused, the same answers, and giving everything back."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import ChatTemplateError, HostError, RequestError
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.conversation import Conversation
from mlxr.runtime.engine.errors import PromptTooLongError
from mlxr.runtime.engine.make_requests import Terms
from mlxr.runtime.engine.model import Model
from mlxr.runtime.engine.reasoning import Reasoning
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr_tests.few import few
from mlxr_tests.storyteller import BF16, Q8_0, TINY, storyteller_spec

TEMPLATE = """\
{{ bos_token }}{% for m in messages %}
{% if m.role == 'assistant' %}{{ m.content }}
{% else %}{{ m.role }}: {{ m.content }}
Answer:{% endif %}{% endfor %}"""


@pytest.fixture(scope="module", params=few(["paged", "contiguous"], ["paged"]))
def model(request: pytest.FixtureRequest) -> Model:
    """Storyteller with a context of 128 and steps of 16 tokens."""
    cache = {"mode": request.param, "max_sequences": 1 if request.param == "contiguous" else 3}
    spec = storyteller_spec(model={"context": 128}, cache=cache, prefill_chunk=16, compute="exact")
    return mlxr.load(compile_spec(spec).artifact, Q8_0, host="cpu")


@pytest.fixture(autouse=True)
def nothing_is_kept(model: Model) -> Iterator[None]:
    """Every test must leave the arena empty."""
    yield
    model.pager.check_integrity()
    assert model.pager.num_sequences == 0


def ids(count: int, start: int = 300) -> list[int]:
    return list(range(start, start + count))


def answer(model: Model, prompt: list[int]) -> Completion:
    return model.start([prompt], max_tokens=5, ignore_eos=True).finish()[0]


def test_what_a_prompt_begins_with_is_not_read_again(model: Model) -> None:
    first = ids(20, 400)
    longer = [*first, *answer(model, first).token_ids, 700, 701]
    other = [*first[:13], 900, 901, 902]
    for prompt, cached in ((longer, 24), (other, 13)):
        again = answer(model, prompt)
        assert again.cached_tokens == cached, "the last token of an answer is not in the arena"
        model.pager.check_integrity()
        answer(model, ids(100, 2000))  # in a contiguous arena the prompt is forgotten now
        sampling, terms = mlxr.Sampling(max_tokens=5, ignore_eos=True), Terms(salt=str(cached))
        with_salt = model.make_requests([prompt], sampling, lambda news: None, terms)
        run(model, with_salt)
        assert with_salt[0].answer.completion.cached_tokens == 0
        assert with_salt[0].answer.completion.token_ids == again.token_ids
        answer(model, first)


def run(model: Model, requests: list[Request]) -> None:
    for request in requests:
        model.core.add(request)
    while model.core.step():
        pass


def test_the_same_prompt_again_reads_its_last_token(model: Model) -> None:
    answers = [model.start([ids(9, 500)], max_tokens=3, ignore_eos=True).finish()[0] for _ in range(2)]
    assert [answer.cached_tokens for answer in answers] == [0, 8]
    assert answers[0].token_ids == answers[1].token_ids


def test_an_answer_that_is_broken_off_is_kept_as_far_as_it_came(model: Model) -> None:
    generation = model.start([ids(20, 600)], max_tokens=30, ignore_eos=True)
    tokens = [next(iter(generation)).token_id for _ in range(4)]
    generation.close()
    model.pager.check_integrity()
    again = answer(model, [*ids(20, 600), *(token for token in tokens if token is not None), 5])
    assert again.cached_tokens == 23


def test_a_step_that_fails_keeps_what_came_before(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = model.start([ids(40, 800)], max_tokens=5)
    steps = []
    step = model.host.step

    def fail(batch: object) -> object:
        steps.append(batch)
        if len(steps) == 2:
            raise HostError("the step failed")
        return step(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(model.host, "step", fail)
    with pytest.raises(HostError, match="the step failed"):
        generation.finish()
    monkeypatch.undo()
    again = model.start([ids(40, 800)], max_tokens=2, ignore_eos=True).finish()[0]
    # Only a paged arena finds blocks while their sequence lives.
    assert again.cached_tokens == (0 if model.pager.contiguous else 16)


def test_a_conversation_reuses_the_arena_and_remembers(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(TEMPLATE)
    with model.chat_template(path) as template:
        talk = Conversation(model, template, system="Be brief.")
        first = "".join(talk.ask("Who is it?", max_tokens=8))
        assert talk.completion is not None
        read = talk.completion.prompt_tokens
        assert talk.completion.cached_tokens == 0
        second = "".join(talk.ask("Why?", max_tokens=8))
        assert talk.completion.cached_tokens >= read, "the first prompt at least is reused"
        assert [m["role"] for m in talk.messages] == ["system", *["user", "assistant"] * 2]
        assert [m["content"] for m in talk.messages] == ["Be brief.", "Who is it?", first, "Why?", second]
        talk.drop_oldest()
        assert [m["content"] for m in talk.messages] == ["Be brief.", "Why?", second]
        talk.clear()
        assert talk.messages == [{"role": "system", "content": "Be brief."}]
        assert "".join(talk.ask("Who is it?", max_tokens=8)) == first
        pieces = talk.ask("Why?", max_tokens=8)
        begun = next(pieces)
        pieces.close()
        assert talk.messages[-1] == {"role": "assistant", "content": begun}
        pieces = talk.ask("Why?", max_tokens=8)
        begun = next(pieces)
        while talk.completion is not None and talk.completion.finish_reason is None:
            model.core.step()  # tokens that nobody has been given yet
        pieces.close()
        assert talk.messages[-1] == {"role": "assistant", "content": begun} and len(talk.completion.text) > len(begun)
        before = list(talk.messages)
        with pytest.raises(PromptTooLongError, match=r"the conversation has .* the context is 128"):
            list(talk.ask("word " * 200))
        assert talk.messages == before
        talk.close()


def test_a_budget_beside_a_constraint_holds_or_is_refused(model: Model) -> None:
    thinks = TEMPLATE + "<think>{{ '</think>' if enable_thinking is false else '' }}"
    choice = Sampling(choice=["yes", "no"], max_tokens=8)
    for text, reasoning, refused in (
        (thinks, Reasoning(budget=3), True),
        (thinks, Reasoning(budget=0), True),  # the prompt has begun a thought
        (thinks, Reasoning({"enable_thinking": False}), False),
        (thinks, Reasoning({"enable_thinking": False}, 3), False),  # and here has ended it
        (thinks, Reasoning(), False),
        (TEMPLATE, Reasoning(budget=3), False),  # it knows no reasoning
    ):
        with ChatTemplate(text, "here") as template:
            talk = Conversation(model, template, reasoning=reasoning)
            if refused:
                with pytest.raises(RequestError, match="budget of reasoning cannot be combined with choice"):
                    list(talk.ask("Is it?", sampling=choice))
                assert talk.messages == []
            else:
                assert "".join(talk.ask("Is it?", sampling=choice)) in ("yes", "no")


def test_leaving_a_conversation_frees_its_sequence_at_once(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(TEMPLATE)
    gc.disable()
    try:
        with model.chat_template(path) as template:
            with Conversation(model, template) as talk:
                pieces = talk.ask("Who is it?")
                next(pieces)
                assert model.pager.num_sequences == 1
            assert model.pager.num_sequences == 0
            assert list(pieces) == []
            assert talk.messages == [], "an answer that was cut off by the end of the conversation is not remembered"
    finally:
        gc.enable()


def test_a_refusal_is_not_remembered(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{% if messages[-1].content == 'no' %}{{ raise_exception('never') }}{% endif %}x")
    with model.chat_template(path) as template:
        talk = Conversation(model, template)
        with pytest.raises(ChatTemplateError, match="refuses this conversation: never"):
            list(talk.ask("no"))
        assert talk.messages == []
        list(talk.ask("yes", max_tokens=1))
        assert len(talk.messages) == 2
        talk.close()


def test_a_model_without_template_or_tokenizer(tmp_path: Path) -> None:
    without = mlxr.load(TINY, host="reference")
    with pytest.raises(ChatTemplateError, match=r"tiny-Q8_0\.gguf: the model comes without a chat template"):
        without.chat_template()
    (tmp_path / "model.safetensors").symlink_to(BF16)
    bare = mlxr.load(mlxr.compile(storyteller_spec()), tmp_path / "model.safetensors", host="reference")
    with pytest.raises(RequestError, match="text needs a tokenizer"):
        bare.chat_template()
