"""Tokenizers and events to try the formats of chat answers with."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens
from mlxr.server.chat.answer_parser import AnswerParser, joined
from mlxr.server.chat.answer_reader import AnswerReader
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import Delta, ToolStart
from mlxr.server.chat.formats.family import Beginning, TemplateFamily
from mlxr.server.chat.formats.registry import family_of
from mlxr_tests.small_templates import CONTROL, TEMPLATES

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}


def byte_tokenizer(control: Sequence[str] = ()) -> LibraryTokenizer:
    """A tokenizer of bytes, with control tokens; `<end>` ends an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(name, special=True) for name in ("<end>", *control)])
    end = library.token_to_id("<end>")
    return LibraryTokenizer(library, "bytes", SpecialTokens(eos_id=end))


def a_job(**options: Any) -> ChatJob:
    """A job with two tools."""
    messages = ({"role": "user", "content": "hi"},)
    return ChatJob(**({"messages": messages, "sampling": Sampling(), "tools": (WEATHER, TIME)} | options))


def events(tokenizer: LibraryTokenizer, pieces: Sequence[str]) -> Iterator[Event]:
    """Events of an answer in pieces: control tokens are told by their names, in pieces of their own."""
    control = tokenizer.control_tokens
    for piece in pieces:
        if piece in control:
            yield Event(0, control[piece], "")
        else:
            yield Event(0, 0, piece)
    yield Event(0, tokenizer.eos_id, "", "stop")


def events_of_ids(tokenizer: LibraryTokenizer, ids: Sequence[int]) -> Iterator[Event]:
    """Events of an answer's tokens, as the engine makes them."""
    decoder = tokenizer.stream_decoder()
    for token in ids:
        yield Event(0, token, decoder.push(token))
    yield Event(0, tokenizer.eos_id, decoder.flush(), "stop")


def cuts(answer: str, control: Sequence[str]) -> Iterator[list[str]]:
    """An answer cut into two pieces anywhere, into characters, and into pieces of a few; never in control tokens."""
    pattern = f"({'|'.join(map(re.escape, control)) or '(?!)'})"
    parts = [part for part in re.split(pattern, answer) if part]
    yield parts
    for size in (1, 2, 3, 7):
        yield [
            piece
            for part in parts
            for piece in ([part] if part in control else [part[i : i + size] for i in range(0, len(part), size)])
        ]
    for number, part in enumerate(parts):
        if part not in control:
            for at in range(1, len(part)):
                yield [*parts[:number], part[:at], part[at:], *parts[number + 1 :]]


@cache
def family(name: str, tokens: bool) -> TemplateFamily:
    """The family of a small template, whose markers are control tokens or text."""
    tokenizer = byte_tokenizer(CONTROL[name] if tokens else ())
    with closing(ChatTemplate(TEMPLATES[name], "here")) as template:
        return family_of(template, {}, tokenizer.control_tokens)


def parsed(
    family: TemplateFamily,
    tokenizer: LibraryTokenizer,
    pieces: Sequence[str],
    job: ChatJob,
    beginning: Beginning = Beginning.OPEN,
    *,
    is_partial: bool = False,
) -> list[Delta]:
    """The deltas of an answer, joined, with ids checked and taken out; of one that goes on, those that are certain."""
    reader = AnswerReader(tokenizer.control_tokens)
    parser = AnswerParser(tokenizer, reader, family.read(reader, job, beginning))
    deltas: list[Delta] = []
    made = list(events(tokenizer, pieces))
    for event in made[:-1] if is_partial else made:
        deltas += parser.push(event)
    deltas = joined(deltas if is_partial else [*deltas, *parser.finish()])
    starts = [delta for delta in deltas if isinstance(delta, ToolStart)]
    assert parser.has_tool_calls == bool(starts)
    assert len({start.id for start in starts}) == len(starts)
    assert all(re.fullmatch("call_[0-9a-zA-Z]{24}", start.id) for start in starts)
    return [ToolStart(delta.index, "", delta.name) if isinstance(delta, ToolStart) else delta for delta in deltas]
