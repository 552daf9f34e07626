"""Eight conversations with tools, and what a prompt must have of each."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

SHAPES: dict[str, tuple[dict[str, Any], ...]] = {}
"""Messages by the name of their shape. Tools are `WEATHER` and `TIME` of `chat_formats`."""


def _call(name: str, arguments: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


_USER = {"role": "user", "content": "Is it raining in Rome?"}
_ROME = _call("get_weather", {"city": "Rome", "days": 2}, "call00001")
_PARIS = _call("get_weather", {"city": "Paris"}, "call00002")
_NOW = _call("time", {}, "call00003")
_RAIN = {"role": "tool", "tool_call_id": "call00001", "content": "Rain all day."}
_SUN = {"role": "tool", "tool_call_id": "call00002", "content": "Sun until noon."}
_CLOCK = {"role": "tool", "tool_call_id": "call00003", "content": "12:30"}
_SYSTEM = {"role": "system", "content": "Answer in verse."}
_AGAIN = {"role": "user", "content": "And tomorrow?"}


def _assistant(content: str, *calls: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {}) | more


SHAPES |= {
    "a question": (_USER,),
    "a system message": (_SYSTEM, _USER),
    "a second question": (_USER, _assistant("It rains."), _AGAIN),
    "a call": (_USER, _assistant("", _ROME), _RAIN),
    "text and a call": (_USER, _assistant("Let me look.", _ROME), _RAIN, _assistant("It rains."), _AGAIN),
    "two calls": (_USER, _assistant("", _ROME, _PARIS), _RAIN, _SUN),
    "a thought and a call": (_SYSTEM, _USER, _assistant("", _ROME, reasoning_content="I must look."), _RAIN),
    "calls one after the other": (_USER, _assistant("", _ROME), _RAIN, _assistant("", _NOW), _CLOCK),
}


def missing(prompt: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """What of messages and tools is not in a prompt; nothing if all is.

    Some templates themselves leave out thoughts, and text beside calls.
    """
    wanted = ["get_weather", "time"]
    for message in messages:
        if "tool_calls" not in message:
            wanted.append(message["content"])
        for call in message.get("tool_calls", ()):
            wanted += map(str, json.loads(call["function"]["arguments"]).values())
    absent = [text for text in wanted if text not in prompt]
    return f"the prompt leaves out {absent}" if absent else ""
