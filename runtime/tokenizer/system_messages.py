"""Renders conversations so that no system message is lost, whatever a template makes of them.

Some templates refuse system messages, some leave them out, or take only one, or only at the beginning. What a template
does with them is found by rendering. Where it is not what it should be, system messages become part of messages of the
user, the first one of the first, as llama.cpp has it.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mlxr.compiler.errors import ChatTemplateError

Message = Mapping[str, Any]
"""`role` (system, user, assistant, ...) and `content`, as templates read them."""
Render = Callable[[Sequence[Message]], str]

ROLES = ("system", "developer")


def render_all(render: Render, messages: Sequence[Message], beside: str = "") -> str | None:
    """The text of a conversation, in which each system message is; None if the template always leaves out one.

    Args:
        render: gives the text of messages as they are.
        messages: in order.
        beside: other text that the rendered one may have, such as tools.

    Raises:
        ChatTemplateError: the template is faulty or refuses the conversation, wherever its system messages stand.
    """
    failure: ChatTemplateError | None = None
    for adapt in (_as_they_are, _only_first, _without):
        adapted = adapt(messages)
        if adapt is not _as_they_are and adapted == list(messages):
            continue
        try:
            text = render(adapted)
            if _has_all(text, messages, beside) or _has_all_marks(lambda marked: render(adapt(marked)), messages):  # noqa: B023
                return text
        except ChatTemplateError as error:
            if error.__cause__ is not None:  # it took too long or too much
                raise
            failure = error
    if failure is not None:
        raise failure
    return None


def joined_turns(messages: Sequence[Message]) -> list[Message]:
    """The same conversation in which no message of the user follows another: agents send several in a row."""
    joined: list[Message] = []
    for message in messages:
        if joined and message.get("role") == "user" == joined[-1].get("role"):
            joined[-1] = _joined(joined[-1], _text(message), before=False)
        else:
            joined.append(message)
    return joined


def _has_all(text: str, messages: Sequence[Message], beside: str) -> bool:
    """Whether a text certainly has all system messages: their words, more often than the others have them."""
    for i, content in _contents(messages):
        others = [_text(message).count(content) for j, message in enumerate(messages) if j != i]
        if text.count(content) <= beside.count(content) + sum(others):
            return False
    return True


def _has_all_marks(render: Render, messages: Sequence[Message]) -> bool:
    """Whether the text of a conversation like this one has all system messages, if these are words that nobody says."""
    marked, marks = list(messages), []
    for i, _ in _contents(messages):
        marks.append(f"mark{secrets.randbelow(10**18)}")
        marked[i] = {**messages[i], "content": marks[-1]}
    text = render(marked)
    return all(mark in text for mark in marks)


def _contents(messages: Sequence[Message]) -> Iterator[tuple[int, str]]:
    """The places of system messages, and their words."""
    for i, message in enumerate(messages):
        if message.get("role") in ROLES and (words := _text(message).strip()):
            yield i, words


def _as_they_are(messages: Sequence[Message]) -> list[Message]:
    return list(messages)


def _only_first(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with at most one system message, at its beginning."""
    count = next((i for i, message in enumerate(messages) if message["role"] not in ROLES), len(messages))
    if not count:
        return _without(messages)
    content = "\n\n".join(map(_text, messages[:count]))
    return [{**messages[0], "content": content}, *_without(messages[count:])]


def _without(messages: Sequence[Message]) -> list[Message]:
    """The same conversation without system messages: each has become part of a message of the user beside it."""
    adapted: list[Message] = []
    waiting: list[str] = []  # for the next message of the user
    later = [i for i, message in enumerate(messages) if message["role"] == "user"]
    for i, message in enumerate(messages):
        if message["role"] in ROLES:
            if adapted and adapted[-1]["role"] == "user":
                adapted[-1] = _joined(adapted[-1], _text(message), before=False)
            elif later and later[-1] > i:
                waiting.append(_text(message))
            else:
                adapted.append({"role": "user", "content": _text(message)})
        elif message["role"] == "user" and waiting:
            adapted.append(_joined(message, "\n".join(waiting), before=True))
            waiting = []
        else:
            adapted.append(message)
    return adapted


def _joined(message: Message, text: str, *, before: bool) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": f"{text}\n{content}" if before else f"{content}\n{text}"}
    part = {"type": "text", "text": text}
    return {**message, "content": [part, *content] if before else [*content, part]}


def _text(message: Message) -> str:
    """What a message says, also if its content is a list of parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)
