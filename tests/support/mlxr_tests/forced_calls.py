"""Calls that a tiny random model is forced to make: they are read back as what the model wrote."""

import asyncio
import json
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema

import mlxr
from mlxr.compiler.errors import ChatTemplateError, MlxrError
from mlxr.compiler.spec.change import Changes
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.answer import answer
from mlxr.server.chat.answer_parser import joined
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import Delta
from mlxr.server.chat.learned.answer_form import AnswerForm, ArgumentForm, Slot
from mlxr_tests.judged_chats import Answer, SpokenModel
from mlxr_tests.random_caller import write_caller
from mlxr_tests.template_answers import CLOCK, MESSAGES, USER, Written, call, difference, read_back, said, written

_MOST_TOKENS, _SEQUENCES = 1200, 25
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SPOT = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "enum": ["Via Appia", "it's", 'say "hi"', "é🎉", "7", "true"]},
        "number": {"type": "integer", "minimum": -5, "maximum": 500},
        "open": {"type": "boolean"},
    },
    "required": ["street"],
    "additionalProperties": False,
}
STORE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "store_items",
        "description": "Keeps what it is given",
        "parameters": {
            "type": "object",
            "$defs": {"Color": {"enum": ["red", "dark blue"], "type": "string"}, "Spot": _SPOT},
            "properties": {
                "label": {"type": "string"},
                "count": {"type": "integer", "minimum": 0, "maximum": 9999},
                "ratio": {"type": "number", "minimum": -2, "maximum": 2},
                "urgent": {"type": "boolean"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "tags": {
                    "type": "array",
                    "items": {"enum": ["x", "y z", "1", "a,b", "[c]", "\\n"]},
                    "minItems": 1,
                    "maxItems": 4,
                },
                "color": {"$ref": "#/$defs/Color"},
                "place": {"$ref": "#/$defs/Spot"},
                "spots": {"type": "array", "items": {"$ref": "#/$defs/Spot"}, "maxItems": 2},
            },
            "required": ["label", "note", "tags", "place"],
            "additionalProperties": False,
        },
    },
}


@dataclass
class Forced:
    """What became of the calls of one form.

    Attributes:
        right: answers that are calls as they must be, and read back.
        cut: answers that their length has cut, which are not tried.
        same: right ones that are, but for white space, what the template writes of these calls.
        told: what is wrong with the others.
    """

    right: int = 0
    cut: int = 0
    same: int = 0
    told: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Answers that have ended."""
        return self.right + len(self.told)


@dataclass(frozen=True)
class _Served:
    engine: EngineThread
    format: ChatFormat


def forced_calls(template: str, control: Sequence[str], phrases: Sequence[str], num: int, seed: int = 0) -> Forced:
    """Tries a template's form.

    Args:
        template: its text.
        control: names of control tokens.
        phrases: what the template writes, of which the model's vocabulary is made.
        num: answers, of which a quarter each must call any tool, any tools, and one of two that are named.
        seed: of the model's choices.
    """
    forced = Forced()
    with tempfile.TemporaryDirectory() as folder, SpokenModel(template, control) as judge:
        path = write_caller(Path(folder) / "caller.gguf", template, control, phrases, _ends(judge.format.form))
        changes = Changes(sequences=_SEQUENCES, context=8192)
        with (
            EngineThread(lambda: mlxr.load(path, host="cpu", threads=1, changes=changes)) as engine,
            closing(ChatTemplate(template, "the template", {"bos_token": "", "eos_token": ""})) as program,
            closing(ChatFormat(program, engine.model.require_tokenizer())) as chat,
        ):
            for number, job in enumerate(_jobs(chat.form, num)):
                asyncio.run(_answered(_Served(engine, chat), judge, job, seed + number, forced))
    return forced


def _ends(form: AnswerForm) -> list[str]:
    """What ends texts, thoughts and calls."""
    calls, argument = form.calls, form.calls.argument
    found = [calls.end, calls.section_end, *(argument.quote or () if argument else ())]
    found += [] if form.thought is None else [form.thought.end_marker]
    for key in (*STORE["function"]["parameters"]["properties"], KEY) if argument else ():
        found += [ended(each, key) for each in (argument, argument and argument.text) if each]
    return list(dict.fromkeys(text.strip() for text in found if text.strip()))


def ended(form: ArgumentForm, key: str) -> str:
    """What ends an argument of this name."""
    return "".join(key if part is Slot.KEY else str(part) for part in form.end)


def _jobs(form: AnswerForm, num: int) -> Iterator[ChatJob]:
    tools = (_with_markers(form), CLOCK)
    ways = (("required", False), ("required", True), ("function:store_items", True), ("function:clock", False))
    for number in range(0, num, _SEQUENCES):
        choice, parallel = ways[number // _SEQUENCES % len(ways)]
        budget = (None, 6)[number // _SEQUENCES % 3 != 0]
        sampling = Sampling(temperature=1.0, max_tokens=_MOST_TOKENS, n=min(_SEQUENCES, num - number))
        yield ChatJob((USER,), sampling, tools, choice, parallel, thinking_budget=budget)


def _with_markers(form: AnswerForm) -> dict[str, Any]:
    """The tool, with a text that must be one of the form's own markers, unless it would end the text."""
    calls, argument = form.calls, form.calls.argument
    markers = [calls.section_start, calls.start, calls.end, calls.section_end]
    markers += [] if form.thought is None else [form.thought.opening, form.thought.end_marker]
    end = "" if argument is None else ended(argument, KEY)
    ends = [end.strip()] if argument is None or argument.quote is None else list(argument.quote)
    found = [text.strip() for text in markers if text.strip()]
    found = [text for text in dict.fromkeys(found) if "\n" not in text and not any(e in text for e in ends if e)]
    if not end.strip() and argument is not None and argument.quote is None:
        found = []  # texts stand in a line
    function: Mapping[str, Any] = STORE["function"]
    parameters = function["parameters"]
    properties = {**parameters["properties"], KEY: {"type": "string", "enum": ["plain", *found]}}
    return {**STORE, "function": {**function, "parameters": {**parameters, "properties": properties}}}


KEY = "marker"


async def _answered(model: _Served, judge: SpokenModel, job: ChatJob, seed: int, forced: Forced) -> None:
    """Asks for the answers of a job at once, and judges each."""
    deltas: dict[int, list[Delta]] = {}
    job = ChatJob(**{**vars(job), "sampling": Sampling(**{**_given(job.sampling), "seed": seed})})
    try:
        async with aclosing(answer(model, job)) as pieces:
            async for piece in pieces:
                deltas.setdefault(piece.index, []).extend(piece.deltas)
                if piece.event.finish_reason is None:
                    continue
                assert piece.event.completion is not None
                if piece.event.finish_reason != "stop":
                    forced.cut += 1
                    continue
                text = _said(model.engine, piece.event.completion.token_ids)
                told, is_same = _judged(model, judge, job, text, Answer.of(joined(deltas[piece.index])))
                forced.same += is_same
                if told:
                    forced.told.append(f"{job.tool_choice}, seed {seed}, {text!r}: {told}")
                else:
                    forced.right += 1
    except MlxrError as error:
        forced.told.append(f"{job.tool_choice}, seed {seed}: refused: {error}")


def _given(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in ("temperature", "max_tokens", "n")}


def _said(engine: EngineThread, ids: Sequence[int]) -> str:
    """What tokens say, control tokens by their names."""
    tokenizer = engine.model.require_tokenizer()
    control = tokenizer.control_ids
    pieces = [tokenizer.token_text(each).encode() if each in control else tokenizer.bytes_of(each) for each in ids]
    return b"".join(pieces).decode("utf-8", "replace")


def _judged(model: _Served, judge: SpokenModel, job: ChatJob, text: str, got: Answer) -> tuple[str, bool]:
    """What is wrong with an answer, or nothing; and whether its text is the template's own of the same calls."""
    names = [name for name, _ in got.calls]
    if got.content.strip() or not names or (not job.may_call_several and len(names) > 1):
        return f"it is {got}", False
    calls = []
    for number, (name, arguments) in enumerate(got.calls, 1):
        function = next((tool["function"] for tool in job.tools if tool["function"]["name"] == name), None)
        if function is None or job.chosen_tool not in (None, name):
            return f"it calls {name}", False
        try:
            value = json.loads(arguments)
            jsonschema.validate(value, function["parameters"])
        except (ValueError, jsonschema.ValidationError) as error:
            return f"its arguments are {arguments}: {str(error).splitlines()[0]}", False
        calls.append(call(name, value, number))
    message = said("", *calls)
    own = _own(judge, message)
    if own is None:  # the template leaves out calls
        return "", False
    form, control = model.format.form, judge.tokenizer.control_tokens
    alone = own.answer
    for marker in ("", form.thought.opening.strip(), form.thought.end_marker) if form.thought else ():
        alone = alone.lstrip().removeprefix(marker)
    if _bare(_without_ids(_without_ends(alone, control), form)) in _bare(_without_ids(text, form)):
        return "", True
    unsafe = [*control, *(["]]>"] if "<![CDATA[" in own.answer else [])]
    if any(each in arguments for _, arguments in got.calls for each in unsafe) or not _is_exact(judge):
        return "", False  # text that spells control tokens would be taken for these
    again = read_back(judge, own, tools=job.tools)
    return difference(message, again) and f"it is {got}, and the template writes {own.answer!r}", False


def _own(judge: SpokenModel, message: dict[str, Any]) -> Written | None:
    """What the template writes of a message, with other tools of the same names; None if it leaves out calls."""
    for content in ("", None):
        with suppress(ChatTemplateError):
            own = written(judge.template, message | {"content": content})
            if all(each["function"]["name"] in own.answer for each in message["tool_calls"]):
                return own
    return None


@cache
def _is_exact(judge: SpokenModel) -> bool:
    """Whether the template writes all texts so that they can be read: some put them between quotes as they are."""
    own = _own(judge, MESSAGES["hard text"])
    return own is not None and not difference(MESSAGES["hard text"], read_back(judge, own))


def _without_ends(text: str, control: Collection[str]) -> str:
    """A text without the tokens at its end, which may end the turn, and those of its beginning."""
    while found := next((name for name in control if text.startswith(name) and not text.endswith(name)), None):
        text = text.removeprefix(found).lstrip()
    while found := next((name for name in control if text.endswith(name)), None):
        text = text.removesuffix(found).rstrip()
    return text


def _without_ids(text: str, form: AnswerForm) -> str:
    """A text without ids and numbers of calls, which a model may choose."""
    for before, part in pairwise(form.calls.body):
        if part in (Slot.ID, Slot.NUMBER) and isinstance(before, str):
            text = re.sub(f"({re.escape(before)})[A-Za-z0-9]+", r"\1", text)
    return text


def _bare(text: str) -> str:
    """A text without white space, escapes and ways to write numbers."""
    text = _ESCAPE.sub(lambda match: _unescaped(match[1]), text)
    text = _NUMBER.sub(lambda match: repr(float(match[0])), text)
    return "".join(text.split())


def _unescaped(sign: str) -> str:
    if len(sign) > 1:
        return chr(int(sign[1:], 16))
    return {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}.get(sign, sign)
