"""Stop strings: the text that is given out is the whole text up to the first of them, however it is cut into pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.runtime.engine.answer_text import AnswerText
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.stop_strings import StopStrings
from mlxr_tests.chat_formats import byte_tokenizer

TEXTS = st.text(alphabet="ab\n", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=3)


def given_out(pieces: list[str], stop: list[str], include_stop: bool) -> tuple[str, bool]:
    finder, out = StopStrings(stop, include_stop), ""
    for piece in pieces:
        text, stopped = finder.push(piece)
        out += text
        if stopped:
            return out + finder.flush(), True
    return out + finder.flush(), False


@settings(max_examples=250, deadline=None, database=None)
@given(TEXTS, STOPS, st.booleans(), st.data())
def test_it_is_the_text_up_to_the_first_stop_string(
    text: str, stop: list[str], include_stop: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    end, start = min(found, default=(len(text), len(text)))
    assert given_out(pieces, stop, include_stop) == (text[: end if include_stop else start], bool(found))


@settings(max_examples=200, deadline=None, database=None)
@given(TEXTS, STOPS)
def test_no_more_is_held_back_than_may_begin_a_stop_string(text: str, stop: list[str]) -> None:
    finder = StopStrings(stop)
    certain, stopped = finder.push(text)
    held = text[len(certain) :]
    assert stopped or not held or any(s.startswith(held) for s in stop)


@pytest.mark.parametrize(("include_stop", "text"), [(False, "A: yes"), (True, "A: yes\n\n")])
def test_the_stop_string_belongs_to_the_text_or_not(include_stop: bool, text: str) -> None:
    finder = StopStrings(["\n\n", "END"], include_stop)
    assert [finder.push(piece) for piece in ("A: yes\n", "\nB")] == [("A: yes", False), (text[6:], True)]
    assert finder.matched == "\n\n"


def test_text_that_may_begin_a_stop_string_comes_with_a_control_token_at_the_latest() -> None:
    tokenizer = byte_tokenizer(["<call>"])
    text = AnswerText(tokenizer, [], Sampling(stop="ab"))
    a, b = tokenizer.encode("ab")
    call = tokenizer.control_tokens["<call>"]
    assert [text.push(token) for token in (a, call, b, a)] == [("", False), ("a", False), ("b", False), ("", False)]
    assert text.push(b) == ("", True)
