"""Messages for templates that take one tool call in a message, or no text beside calls: others are split."""

from collections.abc import Sequence
from typing import Any


def one_call_each(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation, in which each message has at most one call, and its results follow it.

    Text and reasoning stay with the first of the calls.
    """
    split: list[dict[str, Any]] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            split.append(message)
            continue
        results = []
        while position < len(messages) and messages[position]["role"] == "tool":
            results.append(messages[position])
            position += 1
        bare = {key: value for key, value in message.items() if key not in ("content", "reasoning_content")}
        for number, call in enumerate(calls):
            split.append((message if number == 0 else bare | {"content": ""}) | {"tool_calls": [call]})
            split += [result for result in results if result["tool_call_id"] == call["id"]]
    return split


def text_before_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation, in which the text of messages with calls has a message of its own before them."""
    split: list[dict[str, Any]] = []
    for message in messages:
        if message.get("tool_calls") and message["content"]:
            split.append({"role": message["role"], "content": message["content"]})
            split.append(message | {"content": ""})
        else:
            split.append(message)
    return split
