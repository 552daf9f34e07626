"""Llama 3's tag, which its templates write only for tools that are built in: code, or `name.call(key="value")`."""

import ast
import json
import re

from mlxr.server.chat.answer_reader import AnswerReader, Reading
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import ContentDelta
from mlxr.server.chat.json_call import CallState, read_json_call

TAG = "<|python_tag|>"
_INTERPRETER = "code_interpreter"
"""The tool that runs what follows the tag, if it is code."""
_BUILT_IN = re.compile(r"\s*([\w.-]+)\.call(\(.*\))\s*", re.DOTALL)


def read_tagged(reader: AnswerReader, job: ChatJob) -> Reading:
    """Reads what follows the tag: a call as JSON, else all that is left."""
    reader.mark()
    if (yield from reader.begins_with("{")):
        state = yield from read_json_call(reader)
        if state is CallState.BROKEN:
            yield from reader.rest_as(reader.emit_arguments)
        if state is not CallState.NO_CALL:
            yield from reader.skip_space()
            if (yield from reader.next_sign()) == ";":
                reader.take_sign()
            return
    yield from reader.rest_as(lambda text: None)
    text = reader.since_mark()
    built_in = _built_in_call(text)
    if built_in is None and _INTERPRETER in job.tool_names:
        built_in = _INTERPRETER, json.dumps({"code": text.strip()}, ensure_ascii=False)
    if built_in is None:
        reader.emit(ContentDelta, TAG + text.lstrip())
        return
    reader.start_call(built_in[0])
    reader.emit_arguments(built_in[1])


def _built_in_call(text: str) -> tuple[str, str] | None:
    """The name and arguments of `name.call(key="value")`."""
    match = _BUILT_IN.fullmatch(text)
    if match is None:
        return None
    try:
        call = ast.parse(f"f{match[2]}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            return None
        arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return match[1], json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
