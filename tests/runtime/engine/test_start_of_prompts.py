"""What is done before a prompt's step is launched, what while the device computes, and what at its end."""

from types import SimpleNamespace

import pytest

from mlxr.compiler.errors import OptionError
from mlxr.runtime.engine.answer_text import AnswerText
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.sampling.options import sampling_for
from mlxr_tests.byte_tokenizer import ByteTokenizer
from mlxr_tests.chat_formats import byte_tokenizer
from mlxr_tests.hash_host import HashEngine

PROMPT = [3, 10, 17, 25, 0, 9, 16, 23, 30, 7, 15]


def test_the_decoder_of_a_prompt_is_made_while_the_device_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, tokenizer, log = HashEngine(pipelines=True), ByteTokenizer(), list[str]()
    one = engine.add(PROMPT, 3)
    for name in ("step", "read"):
        call = getattr(engine.host, name)
        monkeypatch.setattr(engine.host, name, lambda *given, call=call, name=name: (log.append(name), call(*given))[1])

    def make() -> SimpleNamespace:
        log.append("decoder")
        return SimpleNamespace(push=lambda _: "x", flush=str, texts_of=lambda _: None)

    monkeypatch.setattr(tokenizer, "stream_decoder", make)
    object.__setattr__(one.request, "text", AnswerText(tokenizer, PROMPT, Sampling()))
    engine.run()
    assert log.index("step") < log.index("decoder") < log.index("read") and log.count("decoder") == 1
    assert one.request.answer.completion.text == "xxx"


def test_a_decoder_that_cannot_be_made_fails_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, tokenizer = HashEngine(pipelines=True), ByteTokenizer()
    one, other = engine.add(PROMPT[:5], 9), engine.add(PROMPT[5:], 9)

    def fail() -> None:
        raise ValueError("broken")

    monkeypatch.setattr(tokenizer, "stream_decoder", fail)
    object.__setattr__(one.request, "text", AnswerText(tokenizer, PROMPT, Sampling()))
    engine.run()
    assert len(other.tokens) == 9 and str(one.error) == "broken"
    engine.check_empty()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_an_answer_without_tokens_has_no_text_after_a_prompt_that_ends_within_a_character(is_prepared: bool) -> None:
    tokenizer = byte_tokenizer()
    first, second = tokenizer.encode("é")
    empty, whole = (AnswerText(tokenizer, [first], Sampling()) for _ in range(2))
    if is_prepared:
        empty.prepare()
        whole.prepare()
    assert (empty.flush(), whole.table) == ("", None)
    assert (whole.ahead([second])[0], whole.flush()) == (["é"], ""), "nothing has begun"
    assert (whole.decode(second), whole.flush()) == ("é", "")


def test_blocks_of_a_prompt_that_is_read_are_known_before_another_request_begins() -> None:
    """They are noted when its step has been launched. Those who ask in the same step wait, and those who come later."""
    for late in (False, True):
        engine = HashEngine(max_tokens=8 if late else 32, pipelines=True)
        first = engine.add(PROMPT, 4)
        if late:
            engine.core.step()
            assert not engine.core.scheduler.being_read._new
        others = [engine.add(PROMPT, 4), engine.add([*PROMPT[:8], 1, 2], 4)]
        engine.run()
        assert [one.request.answer.completion.cached_tokens for one in others] == [10, 8], late
        assert others[0].tokens == first.tokens and not first.request.answer.completion.cached_tokens
        engine.check_empty()


def test_options_that_a_call_adds_to_are_not_shared() -> None:
    made = [sampling_for(None, most, False) for most in (3, None)]
    assert made == [Sampling(max_tokens=3), Sampling()] and made[0].logit_bias is not made[1].logit_bias
    own = Sampling(temperature=0.5, stop="x", logit_bias={3: 1.5})
    assert sampling_for(own, 7, True) == Sampling(
        temperature=0.5, stop="x", logit_bias={3: 1.5}, max_tokens=7, ignore_eos=True
    )
    assert own.max_tokens == 128 and not own.ignore_eos
    assert isinstance(own.logit_bias, dict)
    own.logit_bias[-1] = 0.5
    with pytest.raises(OptionError, match="a key of logit_bias"):
        sampling_for(own, None, False)
