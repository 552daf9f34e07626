"""GLM 4.5 and later: `<tool_call>name`, then `<arg_key>` and `<arg_value>` for each argument, `</tool_call>`."""

import json
from typing import Any

from mlxr.server.chat.answer_grammar import AnswerGrammar
from mlxr.server.chat.answer_reader import AnswerReader, Part, Reading
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import Content
from mlxr.server.chat.formats.family import Family, one_or_more

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


class Glm(Family):
    """Values that are text come as they are, others as JSON: the tool's schema says which."""

    def __init__(self, template_text: str) -> None:
        """See `Family`."""
        super().__init__(template_text)
        # GLM 4.5 and 4.6 put each part on a line of its own.
        self._line_end = "\n" if f"{_KEY_END}\n{_VALUE}" in template_text else ""

    @staticmethod
    def matches(template_text: str) -> bool:
        """Whether it speaks of `<arg_key>`."""
        return _KEY in template_text

    def read_calls(self, reader: AnswerReader, job: ChatJob) -> Reading:
        """See `Family`."""
        while (yield from reader.text_until(Content, [_OPENING])) is not None:
            reader.mark()
            pieces: list[str] = []
            marker = yield from reader.each_until(pieces.append, [_KEY, _CLOSING])
            name = "".join(pieces).strip()
            if marker is None or not name or any(sign.isspace() or sign == "\ud800" for sign in name):
                reader.emit(Content, _OPENING + reader.since_mark())
                continue
            reader.start_call(name)
            reader.emit_arguments("{")
            if (yield from _read_arguments(reader, _schemas(job, name), marker)):
                reader.emit_arguments("}")
            yield from reader.skip_space()

    def calls(self, grammar: AnswerGrammar, job: ChatJob) -> tuple[str, str]:
        """See `Family`. The arguments' values are constrained, each by its own part of the tool's schema."""
        bodies = []
        for number, tool in enumerate(job.tools):
            function = tool["function"]
            if job.chosen_tool in (None, function["name"]):
                call = _call(grammar, f"value_{number}", function, self._line_end)
                bodies.append(grammar.add(f"call_{number}", call))
        body = grammar.add("body", f"({' | '.join(bodies)}) {grammar.marker(_CLOSING)}")
        between = f"{_quoted(grammar, self._line_end)} {grammar.marker(_OPENING)}"
        return _OPENING, one_or_more(body, between, job.may_call_several)


def _read_arguments(reader: AnswerReader, schemas: dict[str, Any], marker: str | None) -> Part[bool]:
    """Reads what follows the name of a call, as a JSON object without its braces; whether it ended as it should."""
    is_first = True
    while marker == _KEY:
        pieces: list[str] = []
        if (yield from reader.each_until(pieces.append, [_KEY_END])) is None:
            reader.emit_arguments("".join(pieces))
            return False
        key = "".join(pieces).strip()
        reader.emit_arguments(f"{'' if is_first else ', '}{json.dumps(key, ensure_ascii=False)}: ")
        is_first = False
        if not (yield from reader.begins_with(_VALUE)):
            yield from reader.each_until(reader.emit_arguments, [_CLOSING])
            return False
        if not (yield from _read_value(reader, schemas.get(key))):
            return False
        marker = yield from reader.each_until(reader.emit_arguments, [_KEY, _CLOSING])
    return marker == _CLOSING


def _read_value(reader: AnswerReader, schema: Any) -> Part[bool]:
    """Reads a value and its end; whether it has one. Text is told as it comes, other JSON when it is whole."""
    if _is_text(schema):
        reader.emit_arguments('"')
        end = yield from reader.each_until(lambda text: reader.emit_arguments(_escaped(text)), [_VALUE_END], exact=True)
        if end is not None:
            reader.emit_arguments('"')
        return end is not None
    pieces: list[str] = []
    end = yield from reader.each_until(pieces.append, [_VALUE_END], exact=True)
    value = "".join(pieces)
    reader.emit_arguments(value.strip() if _is_json(value) else f'"{_escaped(value)}"')
    return end is not None


def _quoted(grammar: AnswerGrammar, text: str) -> str:
    return grammar.text(text) if text else ""


def _call(grammar: AnswerGrammar, rule: str, function: dict[str, Any], line_end: str) -> str:
    """The grammar of a call: required arguments in the schema's order, then others, each at most once."""
    parameters = function.get("parameters") or {}
    required = parameters.get("required") or []
    end_of_line = _quoted(grammar, line_end)
    parts = [grammar.text(function["name"] + line_end)]
    definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    for number, (key, schema) in enumerate((parameters.get("properties") or {}).items()):
        name = f"{rule}_{number}"
        if _is_text(schema):
            choices = [text for text in _list(schema.get("enum")) if isinstance(text, str)]
            end = grammar.marker(_VALUE_END)
            value = (
                f"({' | '.join(map(grammar.text, choices))}) {end}"
                if choices
                else grammar.until("text_value", _VALUE_END)
            )
        else:
            merged = {**definitions, **schema} if isinstance(schema, dict) else schema
            value = f"{grammar.schema(name, merged, strict=bool(function.get('strict')))} {grammar.marker(_VALUE_END)}"
        head = f"{grammar.marker(_KEY)} {grammar.text(key)} {grammar.marker(_KEY_END)} {end_of_line}"
        argument = f"{head} {grammar.marker(_VALUE)} {value} {end_of_line}"
        parts.append(argument if key in required else f"({argument})?")
    return " ".join(parts)


def _schemas(job: ChatJob, name: str) -> dict[str, Any]:
    """The schemas of a tool's arguments, as far as they are known."""
    for tool in job.tools:
        if tool["function"]["name"] == name:
            properties = (tool["function"].get("parameters") or {}).get("properties")
            return properties if isinstance(properties, dict) else {}
    return {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_text(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
