"""A template as the judge of its own answers: what it writes of an assistant's message is what its model writes."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.messages import with_text_arguments
from mlxr_tests.judged_chats import Answer, SpokenModel

USER = {"role": "user", "content": "What now?"}
ITEMS = {
    "type": "function",
    "function": {
        "name": "store_items",
        "description": "Keeps what it is given",
        "parameters": {
            "type": "object",
            "properties": {
                "label": {"type": "string", "description": "A label"},
                "count": {"type": "integer", "description": "A count"},
                "ratio": {"type": "number", "description": "A ratio"},
                "urgent": {"type": "boolean", "description": "A urgent"},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "Some tags"},
                "place": {
                    "type": "object",
                    "description": "A place",
                    "properties": {
                        "street": {"type": "string", "description": "A street"},
                        "number": {"type": "integer", "description": "A number"},
                    },
                    "additionalProperties": False,
                },
            },
            "required": ["label"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
TOOLS = (ITEMS, CLOCK)


def call(name: str, arguments: Mapping[str, Any], number: int = 1) -> dict[str, Any]:
    """A call as messages have it, with an id of nine letters, as some templates want."""
    return {
        "id": f"call{number:05}",
        "type": "function",
        "function": {"name": name, "arguments": dict(arguments)},
    }


def said(content: str, *calls: dict[str, Any], thought: str = "") -> dict[str, Any]:
    """A message of the assistant."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought
    return message | ({"tool_calls": list(calls)} if calls else {})


KINDS = {"label": "a b", "count": 12, "ratio": -0.5, "urgent": True, "tags": ["x", "y z"]}
NESTED = {"label": "12", "tags": [], "place": {"street": "Via Appia", "number": 7}}
HARD = {"label": "He said \"no\" {1} [2] <b>é🎉</b> \\ 100% 'it', (x=1): ok"}
LINES = {"label": "one\n  two\n\nthree"}
MESSAGES = {
    "a call": said("", call("store_items", {"label": "milk"})),
    "kinds": said("", call("store_items", KINDS)),
    "nested": said("", call("store_items", NESTED)),
    "hard text": said("", call("store_items", HARD)),
    "lines": said("", call("store_items", LINES)),
    "no arguments": said("", call("clock", {})),
    "two calls": said("", call("store_items", {"label": "milk", "count": 2}), call("clock", {}, 2)),
    "three of one tool": said(
        "", *(call("store_items", {"label": text}, n) for n, text in enumerate(("apple", "brick", "cloud"), 1))
    ),
    "text and a call": said("Let me see: 1 < 2.", call("store_items", {"label": "milk"})),
    "text": said("No call here: {1} <b> [x] f(y=2)."),
}
THOUGHT = "I should\nlook (first) at {it}."
"""Of which each message also gets a copy with a thought, where templates write them."""


@dataclass(frozen=True)
class Written:
    """An answer as its template writes it.

    Attributes:
        prompt: what comes before.
        answer: without what ends the turn.
        end: what ends it, save white space.
        switch: variables of the template with which it is written.
        is_asked: whether the prompt is the one that the template writes for the model to go on, not only its beginning.
    """

    prompt: str
    answer: str
    end: str = ""
    switch: Mapping[str, Any] = field(default_factory=dict)
    is_asked: bool = True


_SWITCHES: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": False}, {"enable_thinking": True})
_MARKER = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*\]")
_ENDS = re.compile(
    r"<\|(?:eom_id|eot_id|eom|eot|call|calls|end_of_msg|tool_response)\|?>\s*$|<\|(?:END|START)_OF_TURN_TOKEN\|>.*",
    re.DOTALL,
)
"""Tokens that end a turn after a call in some models, and not after a text."""


def written(
    template: ChatTemplate,
    message: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] = TOOLS,
    ends: Sequence[str] = (),
    *,
    switched: bool = True,
) -> Written:
    """What a template makes of an assistant's message.

    Thinking is switched as it must be for the prompt to be what comes before this message. If no way is, the prompt is
    as much of it as does come before.

    Args:
        template: the program.
        message: with arguments as dicts; it is also tried with JSON text, as some templates want it.
        tools: offered.
        ends: what may end a turn; without it, what follows a text that is no call.
        switched: whether thinking may be switched; else the prompt is that of a request that does not say.

    Raises:
        ChatTemplateError: the template refuses the message.
    """
    found: list[tuple[str, str, str, Mapping[str, Any]]] = []
    thinks = "reasoning_content" in message
    switches = sorted(_SWITCHES, key=lambda each: each.get("enable_thinking") is not thinks)
    for switch in switches if switched else ({},):
        own = {"tools": list(tools), **switch}
        prompt, whole = template.render([USER], **own), _whole(template, message, own)
        found.append((prompt, whole, _end(template, own), switch))
        if whole.startswith(prompt):
            break
    else:
        found = found[:1]
    prompt, whole, end, switch = found[-1]
    start = _num_shared(prompt, whole)
    answer = whole[start:]
    found_ends = [each for each in (*ends, end) if each.strip() and answer.rstrip().endswith(each.rstrip())]
    own_end = _ENDS.search(answer)
    kept = answer.rstrip().removesuffix(found_ends[0].rstrip()) if found_ends else _ENDS.sub("", answer)
    ended = found_ends[0].strip() if found_ends else own_end[0].strip() if own_end else ""
    return Written(whole[:start], kept, ended, switch, is_asked=start == len(prompt))


def _whole(template: ChatTemplate, message: Mapping[str, Any], variables: Mapping[str, Any]) -> str:
    try:
        whole = template.render([USER, dict(message)], add_generation_prompt=False, **variables)
        if not _has_python_dict(whole, message):
            return whole
    except ChatTemplateError:
        pass
    return template.render(with_text_arguments([USER, dict(message)]), add_generation_prompt=False, **variables)


def _num_shared(prompt: str, whole: str) -> int:
    """How many characters two texts share at the beginning, without a part of a marker."""
    num = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), min(len(prompt), len(whole)))
    for text in (prompt, whole):
        for match in _MARKER.finditer(text):
            if match.start() < num < match.end():
                num = match.start()
    return num


def _has_python_dict(text: str, message: Mapping[str, Any]) -> bool:
    """Whether arguments are written in Python's form, as a template does that expects their text; tools may be."""
    text = text.rpartition(USER["content"])[2]
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    return any(each and f"{{'{next(iter(each))}'" in text for each in arguments)


def _end(template: ChatTemplate, variables: Mapping[str, Any]) -> str:
    """What follows a text that is no call."""
    mark = "a text of six words here"
    whole = template.render([USER, said(mark)], add_generation_prompt=False, **variables)
    return whole[whole.rindex(mark) + len(mark) :] if mark in whole else ""


def read_back(model: SpokenModel, text: Written, chance: random.Random | None = None, **options: Any) -> Answer:
    """What MLXR makes of an answer, whole or cut at random.

    Args:
        model: speaks with this template.
        text: what it has written.
        chance: cuts the answer.
        options: of the request.
    """
    job = ChatJob((USER,), Sampling(), **({"tools": TOOLS, "variables": text.switch} | options))
    prompt = model.tokenizer.encode(text.prompt, add_special=False, parse_special=True)
    return Answer.of(model.parsed(job, prompt, model.pieces(text.answer, chance)))


def difference(message: Mapping[str, Any], got: Answer) -> str:
    """How an answer differs from the message that it was made of; nothing if it does not, save white space at ends."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    expected = [(function["name"], function["arguments"]) for function in calls]
    try:
        told = [(name, json.loads(arguments)) for name, arguments in got.calls]
    except ValueError:
        return f"arguments that are no JSON: {got.calls}"
    if told != expected:
        return f"calls are {told}, with text {got.content!r} and thought {got.reasoning!r}; expected {expected}"
    if got.content.strip() != message["content"].strip():
        return f"the text is {got.content!r}; expected {message['content']!r}"
    thought = message.get("reasoning_content", "")
    return "" if got.reasoning.strip() == thought else f"the thought is {got.reasoning!r}; expected {thought!r}"
