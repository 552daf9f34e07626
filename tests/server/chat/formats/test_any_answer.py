"""Answers of any shape: nothing fails, nothing is lost, and where an answer is cut changes nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart
from mlxr.server.chat.formats.family import Beginning
from mlxr_tests.chat_formats import a_job, byte_tokenizer, family, parsed
from mlxr_tests.few import examples
from mlxr_tests.small_templates import CONTROL, TEMPLATES

WORDS = [
    "w1",
    "w2 ",
    " w3",
    "\n",
    '"',
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    ";",
    "\\",
    "<",
    '"name"',
    '"arguments"',
    '{"name": ',
]
WORDS += ['{"name": "get_weather", "arguments": {"a": "w4"}}', '"time"', "to=functions.f", "analysis", "f.call(a=1)"]


def pieces_of(name: str) -> st.SearchStrategy[list[str]]:
    markers = CONTROL[name]
    return st.lists(st.sampled_from([*WORDS, *markers * 3]), max_size=14)


def words_in(deltas: list[Delta]) -> str:
    texts = []
    for delta in deltas:
        match delta:
            case ContentDelta(text) | ReasoningDelta(text) | ToolArguments(_, text):
                texts.append(text)
            case ToolStart(_, _, name):
                texts.append(name)
    return " ".join(texts)


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=examples(60, 15), deadline=None)
@given(data=st.data(), reasoning=st.booleans(), beginning=st.sampled_from(Beginning))
def test_any_answer(name: str, tokens: bool, data: st.DataObject, reasoning: bool, beginning: Beginning) -> None:
    form = family(name, tokens)
    tokenizer = TOKENIZERS[name, tokens]
    pieces = data.draw(pieces_of(name))
    job = a_job(reasoning=reasoning)
    control = tokenizer.control_tokens
    whole = parsed(form, tokenizer, merged(pieces, control), job, beginning)
    small = [letter for piece in pieces for letter in ([piece] if piece in control else piece)]
    assert parsed(form, tokenizer, small, job, beginning) == whole
    if name not in ("harmony", "kimi") and "[CALL_ID]" not in pieces:  # headers and ids are no text
        told = words_in(whole)
        for word in ("w1", "w2", "w3", "w4"):
            assert told.count(word) == "".join(pieces).count(word), told


def merged(pieces: list[str], control: dict[str, int]) -> list[str]:
    """The same answer in as few pieces as can be."""
    parts: list[str] = []
    for piece in pieces:
        if parts and piece not in control and parts[-1] not in control:
            parts[-1] += piece
        else:
            parts.append(piece)
    return parts


TOKENIZERS = {
    (name, tokens): byte_tokenizer(CONTROL[name] if tokens else ()) for name in TEMPLATES for tokens in (True, False)
}
