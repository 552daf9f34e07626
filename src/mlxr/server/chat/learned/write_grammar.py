"""Writes the grammar of calls in a form that was learned."""

from collections.abc import Mapping
from typing import Any

from mlxr.runtime.engine.constraint.schema_patterns import whole_pattern
from mlxr.server.chat.answer_grammar import ANYTHING, AnswerGrammar, expression
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.formats.family import one_or_more
from mlxr.server.chat.learned.answer_form import AnswerForm, ArgumentForm, Slot, Style, ValueForm
from mlxr.server.chat.learned.argument_schemas import choices_of, definitions_of, kinds_of, resolved, split_text
from mlxr.server.chat.learned.lexemes import chunks
from mlxr.server.chat.learned.read_arguments import is_text_schema
from mlxr.server.chat.learned.write_values import (
    NOTES,
    OBJECT_KEYS,
    OF_KIND,
    PYTHON,
    TEXT,
    ValueGrammar,
    counts_of,
    in_order,
    sequence,
)

_LINE, _WORD = r"/[^\n]*/", r"/[^\n,;(){}<>\[\]]+/"
"""A text that stands as it is, up to the end of its line, or to what may follow in one."""
_NO_VALUE = r"/([^\s\[{](.|\n)*)?/"
"""A text that does not begin as lists and objects do."""
_QUOTE, _LINE_END = '"', "\n"


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
        self._definitions: Mapping[str, Any] = {}
        self._strict = False

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
        if begin:
            many = f"{many} {grammar.literal(calls.section_end)}"
        # What ends a turn may be more than the token that ends answers.
        end = chunks(self._form.turn_end)
        rest = self._form.turn_end.strip().removesuffix(end[-1]) if len(end) > 1 else ""
        return begin, f"{many} ({grammar.literal(rest)})?" if rest.strip() else many

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
                parts.append(self._object(number, function))
        return " ".join(part for part in parts if part)

    def _object(self, number: int, function: Mapping[str, Any]) -> str:
        """The arguments as one object."""
        grammar, calls, strict = self._grammar, self._form.calls, bool(function.get("strict"))
        schema = {"type": "object", **(function.get("parameters") or {})}
        if calls.has_python or calls.has_text:
            form, rule = PYTHON if calls.has_python else TEXT, f"values_{number}"
            values = ValueGrammar(grammar, form, definitions_of(schema), rule, strict=strict)
            if values.can_say(schema) or calls.has_python:
                value = values.value(schema)
                return f"({grammar.text(_QUOTE)} {value} {grammar.text(_QUOTE)})" if calls.has_text else value
        return grammar.schema(f"arguments_{number}", schema, strict=strict)

    def _arguments(self, number: int, function: Mapping[str, Any]) -> str:
        """Required arguments in the schema's order, and others, each at most once."""
        argument, grammar = self._form.calls.argument, self._grammar
        assert argument is not None, "arguments one by one"
        parameters = function.get("parameters") or {}
        self._definitions, self._strict = definitions_of(parameters), bool(function.get("strict"))
        sequence_ = self._items(f"argument_{number}", parameters, argument)
        # Some templates write what stands before arguments where there are none.
        start, end = argument.start, self._form.calls.end
        if start.startswith("\n") and end.startswith("\n") and not parameters.get("required"):
            return f"({sequence_} | {grammar.text(_LINE_END)})" if sequence_ else f"({grammar.text(_LINE_END)})?"
        return sequence_

    def _items(self, rule: str, schema: Mapping[str, Any], argument: ArgumentForm) -> str:
        """The parts of an object that are written as arguments."""
        required, found = set(schema.get("required") or []), schema.get("properties") or {}
        items = []
        for place, key in enumerate(sorted(found, key=in_order) if argument.is_sorted else found):
            name = f"{rule}_{place}"
            value = resolved(found[key], self._definitions)
            self._grammar.add(name, self._argument(name, key, value, argument))
            items.append((name, key in required))
        return sequence(items, argument.between, self._grammar, rule)

    def _argument(self, rule: str, key: str, schema: Any, argument: ArgumentForm) -> str:
        """One argument; where strings are not quoted, it may be text or something else."""
        if argument.quote is not None:
            return f"{self._head(key, argument, self._kind(schema))} {self._quoted(rule, schema, argument)}"
        text, rest = split_text(schema)
        options = []
        if text is not None:
            options.append(self._text(rule, key, text, argument.text or argument, is_only=rest is None))
        if rest is not None:
            options.append(self._value(rule, key, rest, argument))
        return " | ".join(options)

    def _head(self, key: str, argument: ArgumentForm, kind: str) -> str:
        grammar, middle = self._grammar, dict(argument.middles).get(kind) or argument.middles[0][1]
        return f"{grammar.literal(argument.start)} {grammar.text(key)} {grammar.literal(middle)}"

    def _end(self, key: str, argument: ArgumentForm) -> str:
        return "".join(key if part is Slot.KEY else str(part) for part in argument.end)

    def _text(self, rule: str, key: str, schema: Mapping[str, Any], argument: ArgumentForm, *, is_only: bool) -> str:
        """An argument that is a text as it is.

        Args:
            rule: what the names of rules begin with.
            key: the argument's name.
            schema: of strings.
            argument: the form.
            is_only: whether it can be nothing else; else it does not begin as lists and objects do.
        """
        grammar, head, end = self._grammar, self._head(key, argument, "string"), self._end(key, argument)
        choices = choices_of(schema)
        if choices is not None:
            texts = " | ".join(grammar.text(text) for text in choices if isinstance(text, str))
            return f"{head} ({texts}) {grammar.literal(end)}"
        if end.strip():
            whole = whole_pattern(schema.get("pattern"))
            before = expression(whole) if whole else ANYTHING if is_only else _NO_VALUE
            return f"{head} {grammar.up_to(f'{rule}_text', end if whole else end.strip(), before)}"
        return f"{head} {_LINE if end else _WORD} {grammar.literal(end)}"

    def _quoted(self, rule: str, schema: Any, argument: ArgumentForm) -> str:
        """A value where texts are quoted, and what ends it."""
        grammar, quote = self._grammar, argument.quote
        assert quote is not None, "texts are quoted"
        end = grammar.literal(self._end("", argument))
        if is_text_schema(schema) and len(quote[0]) > 1 and choices_of(schema) is None:
            whole = whole_pattern(schema.get("pattern"))
            text = grammar.up_to(f"{rule}_text", quote[1], expression(whole) if whole else ANYTHING)
            return f"{grammar.literal(quote[0])} {text} {end}"
        form = dict(argument.values).get(self._kind(schema))
        if form is None and quote == ('"', '"'):
            return f"{self._json(rule, schema)} {end}"
        if form is None and self._kind(schema) not in ("string", "any"):
            return f"{self._json(rule, schema)} {end}"
        if form is None:
            form = PYTHON if quote == PYTHON.quote else ValueForm(quote, quote)
            others = dict(argument.values)
            form = next((others[kind] for kind in ("object", "array") if kind in others), form)
        return f"{self._styled(rule, schema, form, argument)} {end}"

    def _value(self, rule: str, key: str, schema: Any, argument: ArgumentForm) -> str:
        """An argument that is no text, where texts stand as they are."""
        grammar, kind = self._grammar, self._kind(schema)
        head, end = self._head(key, argument, kind), grammar.literal(self._end(key, argument))
        if argument.item is not None and (inner := self._nested(rule, schema, argument)) is not None:
            return f"{head} {inner} {end}"
        form = dict(argument.values).get(kind)
        if form is None or kind == "any":
            return f"{head} {self._json(rule, schema)} {end}"
        return f"{head} {self._styled(rule, schema, form, argument)} {end}"

    def _nested(self, rule: str, schema: Any, argument: ArgumentForm) -> str | None:
        """A value that is written as arguments are; None if it is none, or its parts are not known."""
        if not isinstance(schema, Mapping) or argument.item is None:
            return None
        keys = set(schema) - NOTES
        counts = counts_of(schema)
        is_list = (
            schema.get("type") == "array" and keys <= OF_KIND["array"] and isinstance(schema.get("items"), Mapping)
        )
        if is_list and counts is not None:
            item = resolved(schema["items"], self._definitions)
            name = self._grammar.add(f"{rule}_item", self._argument(f"{rule}_item", argument.item, item, argument))
            most = "" if counts[1] is None else counts[1]
            return f"({name}){{{counts[0]},{most}}}"
        if schema.get("type") == "object" and schema.get("properties") and keys <= OBJECT_KEYS:
            return self._items(rule, schema, argument) or None
        return None

    def _styled(self, rule: str, schema: Any, form: ValueForm, argument: ArgumentForm) -> str:
        values = ValueGrammar(
            self._grammar, form, self._definitions, rule, strict=self._strict, is_sorted=argument.is_sorted
        )
        return values.value(schema)

    def _json(self, rule: str, schema: Any) -> str:
        merged = {**self._definitions, **schema} if isinstance(schema, Mapping) else schema
        return self._grammar.schema(f"{rule}_value", merged, strict=self._strict)

    def _kind(self, schema: Any) -> str:
        """The type of values, as forms tell them apart; `any` if there are several."""
        kinds = {"number" if kind == "integer" else kind for kind in kinds_of(schema)}
        return kinds.pop() if len(kinds) == 1 else "any"
