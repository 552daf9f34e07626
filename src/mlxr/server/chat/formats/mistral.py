"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or newer `[TOOL_CALLS]name[ARGS]{...}`."""

import hashlib
import json
import re
import string
from collections.abc import Sequence
from typing import Any

from mlxr.server.chat.answer_grammar import AnswerGrammar
from mlxr.server.chat.answer_reader import AnswerReader, Part, Reading
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import Content, Reasoning
from mlxr.server.chat.formats.family import Family, json_object, one_or_more
from mlxr.server.chat.json_call import CallState, read_json_call
from mlxr.server.chat.split_messages import text_before_calls

_CALLS, _ARGS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9
_OLD_ROLE = re.compile(r"""role['"]?\]?\s*==\s*['"]tool_calls['"]""")


class Mistral(Family):
    """Its templates refuse ids of calls that have not exactly nine letters and digits."""

    def __init__(self, template_text: str) -> None:
        """See `Family`."""
        super().__init__(template_text)
        if "[THINK]" in template_text:
            self.thinking, self.thinks = ("[THINK]", "[/THINK]"), True
        self._has_old_roles = "message.tool_calls" not in template_text and _OLD_ROLE.search(template_text) is not None

    @staticmethod
    def matches(template_text: str) -> bool:
        """Whether it has Mistral's markers."""
        return _CALLS in template_text or ("[INST]" in template_text and "[THINK]" in template_text)

    def messages(self, job: ChatJob) -> Sequence[dict[str, Any]]:
        """See `Family`."""
        if self._has_old_roles:
            return [_with_old_roles(message) for message in text_before_calls(job.messages)]
        return [self._adapted(message) for message in job.messages]

    def _adapted(self, message: dict[str, Any]) -> dict[str, Any]:
        adapted = dict(message)
        if message.get("tool_calls"):
            adapted["tool_calls"] = [call | {"id": short_id(call["id"])} for call in message["tool_calls"]]
        if "tool_call_id" in message:
            adapted["tool_call_id"] = short_id(message["tool_call_id"])
        reasoning = message.get("reasoning_content")
        if reasoning and "'thinking'" in self._template_text.replace('"', "'"):
            chunks = [{"type": "thinking", "thinking": reasoning}]
            adapted["content"] = chunks + ([{"type": "text", "text": message["content"]}] if message["content"] else [])
        return adapted

    def read_calls(self, reader: AnswerReader, job: ChatJob) -> Reading:
        """See `Family`. As a control token, the marker of thinking counts anywhere."""
        opening, closing = self.thinking
        markers = [_CALLS, opening] if job.reasoning and reader.is_control(opening) else [_CALLS]
        while (marker := (yield from reader.text_until(Content, markers))) is not None:
            if marker == opening:
                yield from reader.text_until(Reasoning, [closing])
                yield from reader.skip_space()
                continue
            reader.mark()
            if (yield from reader.begins_with("[")):
                is_call = yield from _read_list(reader)
            else:
                is_call = yield from _read_named(reader)
            if not is_call:
                reader.emit(Content, _CALLS + reader.since_mark())
            yield from reader.skip_space()

    def calls(self, grammar: AnswerGrammar, job: ChatJob) -> tuple[str, str]:
        """See `Family`."""
        arguments = self.arguments(grammar, job)
        if _ARGS in self._template_text:
            call_id = f"{grammar.marker(_CALL_ID)} /[a-zA-Z0-9]{{9}}/ " if _CALL_ID in self._template_text else ""
            head = f"{call_id}{grammar.marker(_ARGS)}"
            named = " | ".join(f"{grammar.text(name)} {head} {rule}" for name, rule in arguments)
            return _CALLS, one_or_more(grammar.add("call", named), grammar.marker(_CALLS), job.may_call_several)
        call = grammar.add("call", " | ".join(json_object(grammar, name, rule) for name, rule in arguments))
        return _CALLS, f'"[" {one_or_more(call, grammar.text(", "), job.may_call_several)} "]"'


def _with_old_roles(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the oldest templates take it, where calls and results are texts with roles of their own."""
    if message.get("tool_calls"):
        calls = [call["function"] | {"id": short_id(call["id"])} for call in message["tool_calls"]]
        return {"role": "tool_calls", "content": json.dumps(calls, ensure_ascii=False)}
    if message["role"] == "tool":
        result = {"content": message["content"], "call_id": short_id(message["tool_call_id"])}
        return {"role": "tool_results", "content": json.dumps(result, ensure_ascii=False)}
    return message


def short_id(call_id: str) -> str:
    """An id as the templates want it, always the same for the same one."""
    if len(call_id) == _ID_LENGTH and all(sign in _LETTERS for sign in call_id):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest())
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(_ID_LENGTH))


def _read_list(reader: AnswerReader) -> Part[bool]:
    """Reads a list of calls whose `[` has been read; whether all of it is told."""
    while True:
        sign = yield from reader.next_sign()
        if sign not in ("{", ",", "]"):
            # The answer has ended within the list, or it is none: what is no call is text.
            return sign == ""
        reader.take_sign()
        if sign == "]":
            return True
        if sign == ",":
            continue
        state = yield from read_json_call(reader)
        if state is CallState.NO_CALL:
            return False
        if state is CallState.BROKEN:
            yield from reader.rest_as(reader.emit_arguments)
        reader.mark()


def _read_named(reader: AnswerReader) -> Part[bool]:
    """Reads a name and arguments; whether it is a call."""
    pieces: list[str] = []
    marker = yield from reader.each_until(pieces.append, [_ARGS, _CALL_ID, "{"])
    name = "".join(pieces).strip()
    if marker is None or not name or any(sign.isspace() or sign == "\ud800" for sign in name):
        return False
    if marker == _CALL_ID:
        call_id: list[str] = []
        marker = yield from reader.each_until(call_id.append, [_ARGS])
    reader.start_call(name)
    if marker is None:
        reader.emit_arguments("".join(call_id))
        return True
    if marker != "{":
        yield from reader.skip_space()
    else:
        reader.put_back("{")
    if (yield from reader.next_sign()) != "{":
        return True
    yield from reader.json_value(reader.emit_arguments)
    return True
