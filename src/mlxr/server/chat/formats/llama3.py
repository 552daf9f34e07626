"""Llama 3.1, 3.2 and 3.3: a call is the whole answer, `{"name": ..., "parameters": {...}}`, or follows a tag.

After the tag, `<|python_tag|>`, it may also be `name.call(query="...")`, the form of tools that are built in.
"""

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from mlxr.server.chat.answer_grammar import AnswerGrammar
from mlxr.server.chat.answer_reader import AnswerReader, Reading
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import Content
from mlxr.server.chat.formats.family import Beginning, Family, json_object, one_or_more
from mlxr.server.chat.json_call import CallState, read_json_call
from mlxr.server.chat.split_messages import one_call_each, text_before_calls

_TAG = "<|python_tag|>"
_INTERPRETER = "code_interpreter"
"""The tool that runs what follows the tag, if it is code."""
_BUILT_IN = re.compile(r"\s*([\w.-]+)\.call(\(.*\))\s*", re.DOTALL)


class Llama3(Family):
    """The template takes one call in a message, and leaves out the text of such a message."""

    @staticmethod
    def matches(template_text: str) -> bool:
        """Llama 3.0 has the same headers, and no tools."""
        return "<|start_header_id|>" in template_text and (
            _TAG in template_text or "ipython" in template_text or '"parameters": ' in template_text
        )

    def messages(self, job: ChatJob) -> Sequence[dict[str, Any]]:
        """See `Family`."""
        return one_call_each(text_before_calls(job.messages))

    def read_calls(self, reader: AnswerReader, job: ChatJob) -> Reading:
        """See `Family`. JSON is a call if it names one of the tools."""
        while True:
            reader.mark()
            if (yield from reader.begins_with(_TAG)):
                yield from self._read_tagged(reader, job)
            elif (yield from reader.begins_with("{")):
                state = yield from read_json_call(reader, job.tool_names)
                if state is CallState.NO_CALL:
                    reader.emit(Content, reader.since_mark())
                elif state is CallState.BROKEN:
                    yield from reader.rest_as(reader.emit_arguments)
                if state is not CallState.COMPLETE:
                    return
            else:
                break
            if (yield from reader.next_sign()) == ";":
                reader.take_sign()
        # A text, in which calls still may follow the tag.
        while (yield from reader.text_until(Content, [_TAG])) is not None:
            reader.mark()
            yield from self._read_tagged(reader, job)

    def _read_tagged(self, reader: AnswerReader, job: ChatJob) -> Reading:
        if (yield from reader.begins_with("{")):
            state = yield from read_json_call(reader)
            if state is CallState.BROKEN:
                yield from reader.rest_as(reader.emit_arguments)
            if state is not CallState.NO_CALL:
                return
        yield from reader.rest_as(lambda text: None)
        text = reader.since_mark().replace(_TAG, "", 1)
        built_in = _built_in_call(text)
        if built_in is None and _INTERPRETER in job.tool_names:
            built_in = _INTERPRETER, json.dumps({"code": text.strip()}, ensure_ascii=False)
        if built_in is None:
            reader.emit(Content, _TAG + text.lstrip())
            return
        reader.start_call(built_in[0])
        reader.emit_arguments(built_in[1])

    def start(self, grammar: AnswerGrammar, job: ChatJob, beginning: Beginning) -> str:
        """See `Family`. Nothing comes before a call."""
        if not job.uses_tools:
            return super().start(grammar, job, beginning)
        rules = self.arguments(grammar, job)
        call = grammar.add("call", " | ".join(json_object(grammar, name, rule, "parameters") for name, rule in rules))
        options = [one_or_more(call, grammar.text("; "), job.may_call_several)]
        if not job.must_call:
            other = r'/(.|\n)*/ & ~/\s*(<\|python_tag\|>|\{\s*"(name|type)")(.|\n)*/'
            options.append(grammar.answer(job.sampling) or grammar.add("TEXT", other))
        return " | ".join(options)


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
