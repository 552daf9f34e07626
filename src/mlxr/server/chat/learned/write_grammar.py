"""Writes the grammar of calls in a form that was learned."""

from collections.abc import Mapping
from typing import Any

from mlxr.runtime.engine.constraint.schema_patterns import whole_pattern
from mlxr.server.chat.answer_grammar import ANYTHING, AnswerGrammar, expression
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.formats.family import one_or_more
from mlxr.server.chat.learned.answer_form import AnswerForm, ArgumentForm, Slot, Style
from mlxr.server.chat.learned.read_arguments import is_text_schema

_LINE, _WORD = r"/[^\n]*/", r"/[^\n,;(){}<>\[\]]+/"
"""A text that stands as it is, up to the end of its line, or to what may follow in one."""


class CallGrammar:
    """The grammar of calls of one job."""

    def __init__(self, form: AnswerForm, grammar: AnswerGrammar, job: ChatJob) -> None:
        """Starts without rules.

        Args:
            form: of the model's answers.
            grammar: gets the rules.
            job: what was asked.
        """
        self._form, self._grammar, self._job = form, grammar, job

    def calls(self) -> tuple[str, str]:
        """The text that begins calls, nothing if they begin with what they are, and a grammar of what follows it."""
        calls, grammar = self._form.calls, self._grammar
        begin = calls.section_start + calls.start
        bodies = []
        for number, tool in enumerate(self._job.tools):
            function = tool["function"]
            if self._job.chosen_tool in (None, function["name"]):
                bodies.append(grammar.add(f"call_{number}", self._body(number, function)))
        grammar.add("call", f"({' | '.join(bodies)}) {grammar.literal(calls.end)}")
        between = grammar.literal(calls.between + calls.start)
        if not calls.between.strip() and not calls.section_start and not begin:
            between = grammar.text("; ")
        many = one_or_more("call", between, self._job.may_call_several)
        return begin, f"{many} {grammar.literal(calls.section_end)}" if begin else many

    def _body(self, number: int, function: Mapping[str, Any]) -> str:
        grammar, calls = self._grammar, self._form.calls
        parts = []
        for part in calls.body:
            if isinstance(part, str):
                parts.append(grammar.literal(part))
            elif part is Slot.NAME:
                parts.append(grammar.text(function["name"]))
            elif part is Slot.ID:
                parts.append("/[a-zA-Z0-9]{9}/")
            elif part is Slot.NUMBER:
                parts.append("/[0-9]{1,3}/")
            elif calls.style is Style.KEYED:
                parts.append(self._arguments(number, function))
            else:
                schema = {"type": "object", **(function.get("parameters") or {})}
                parts.append(grammar.schema(f"arguments_{number}", schema, strict=bool(function.get("strict"))))
        return " ".join(part for part in parts if part)

    def _arguments(self, number: int, function: Mapping[str, Any]) -> str:
        """Required arguments in the schema's order, and others, each at most once."""
        argument, grammar = self._form.calls.argument, self._grammar
        assert argument is not None, "arguments one by one"
        parameters = function.get("parameters") or {}
        required = set(parameters.get("required") or [])
        definitions = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
        strict = bool(function.get("strict"))
        items = []
        for place, (key, schema) in enumerate((parameters.get("properties") or {}).items()):
            merged = {**definitions, **schema} if isinstance(schema, dict) else schema
            rule = f"argument_{number}_{place}"
            grammar.add(rule, self._argument(rule, key, merged, argument, strict=strict))
            items.append((rule, key in required))
        return _sequence(items, grammar.literal(argument.between), grammar, f"arguments_{number}")

    def _argument(self, rule: str, key: str, schema: Any, argument: ArgumentForm, *, strict: bool) -> str:
        grammar = self._grammar
        is_text = is_text_schema(schema)
        middle = argument.middle("string") if is_text else self._middle(schema, argument)
        head = f"{grammar.literal(argument.start)} {grammar.text(key)} {grammar.literal(middle)}"
        end = "".join(key if part is Slot.KEY else str(part) for part in argument.end)
        if is_text and argument.text is not None:
            argument = argument.text
            middle = argument.middle("string")
            head = f"{grammar.literal(argument.start)} {grammar.text(key)} {grammar.literal(middle)}"
            end = "".join(key if part is Slot.KEY else str(part) for part in argument.end)
        if is_text and argument.quote is None:
            choices = [text for text in schema.get("enum") or () if isinstance(text, str)]
            if choices:
                return f"{head} ({' | '.join(map(grammar.text, choices))}) {grammar.literal(end)}"
            if end.strip() and (whole := whole_pattern(schema.get("pattern"))):
                return f"{head} {grammar.up_to(f'{rule}_text', end, expression(whole))}"
            if end.strip():
                return f"{head} {grammar.up_to(f'{rule}_text', end.strip())}"
            return f"{head} {_LINE if end else _WORD} {grammar.literal(end)}"
        if is_text and argument.quote is not None and len(argument.quote[0]) > 1:
            opening, closing = argument.quote
            choices = [text for text in schema.get("enum") or () if isinstance(text, str)]
            if choices:
                value = f"({' | '.join(map(grammar.text, choices))}) {grammar.literal(closing)}"
            else:
                whole = whole_pattern(schema.get("pattern"))
                value = grammar.up_to(f"{rule}_text", closing, expression(whole) if whole else ANYTHING)
            return f"{head} {grammar.literal(opening)} {value} {grammar.literal(end)}"
        value = grammar.schema(f"{rule}_value", schema, strict=strict)
        if argument.has_python and isinstance(schema, Mapping) and schema.get("type") == "boolean":
            value = '("True" | "False" | "true" | "false")'
        return f"{head} {value} {grammar.literal(end)}"

    def _middle(self, schema: Any, argument: ArgumentForm) -> str:
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        names = {"integer": "number"}
        kind = names.get(kind, kind) if isinstance(kind, str) else "object"
        return dict(argument.middles).get(kind or "object", argument.middle("number"))


def _sequence(items: list[tuple[str, bool]], between: str, grammar: AnswerGrammar, rule: str) -> str:
    """Items in order, of which some may be missing, with something between those that are there."""
    if not between:
        return " ".join(name if needed else f"({name})?" for name, needed in items)
    # Rules from the end: what may follow where no item has come yet, and where one has.
    rest_none, rest_some = "", ""
    for place in range(len(items) - 1, -1, -1):
        name, needed = items[place]
        after = f" {rest_some}" if rest_some else ""
        some = f"{between} {name}{after}"
        none = f"{name}{after}"
        if not needed:
            some = f"({some}){'' if rest_some else '?'}" + (f" | {rest_some}" if rest_some else "")
            none = f"({none}){'' if rest_none else '?'}" + (f" | {rest_none}" if rest_none else "")
        rest_some = grammar.add(f"{rule}_more_{place}", some)
        rest_none = grammar.add(f"{rule}_from_{place}", none)
    return rest_none
