"""Writes the grammar of values that a template writes neither as JSON nor as it writes arguments."""

import json
from collections.abc import Mapping
from typing import Any

from mlxr.server.chat.answer_grammar import AnswerGrammar
from mlxr.server.chat.learned.answer_form import ValueForm
from mlxr.server.chat.learned.argument_schemas import resolved

PYTHON = ValueForm(("'", "'"), ("'", "'"), words=("True", "False", "None"))
"""Values as Python's `repr` writes them."""
TEXT = ValueForm(('\\"', '\\"'), ('\\"', '\\"'))
"""JSON within a string of JSON."""
_TEXTS = {
    PYTHON.quote[0]: r"""/'([^'\\\x00-\x08\x0b-\x1f\x7f]|\\['"\\nrt])*'|"([^"\\\x00-\x08\x0b-\x1f\x7f]|\\[\\nrt])*"/""",
    TEXT.quote[0]: r'/\\"([^"\\\x00-\x1f\x7f]|\\\\(\\"|\\\\|[bfnrt]))*\\"/',
}
NOTES = {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment"}
NOTES |= {"$defs", "definitions", "$schema", "$id"}
OBJECT_KEYS = {"type", "properties", "required", "additionalProperties"}
OF_KIND = {
    "string": {"type"},
    "boolean": {"type"},
    "null": {"type"},
    "object": OBJECT_KEYS,
    "array": {"type", "items", "minItems", "maxItems"},
}
_NUMBERS = ("integer", "number")
_MOST_ITEMS = 1000


class ValueGrammar:
    """The grammar of values in one form. What of a schema it cannot say is JSON, which is read too."""

    def __init__(
        self,
        grammar: AnswerGrammar,
        form: ValueForm,
        definitions: Mapping[str, Any],
        rule: str,
        *,
        strict: bool,
        is_sorted: bool = False,
    ) -> None:
        """Starts without rules.

        Args:
            grammar: gets the rules.
            form: of the values.
            definitions: the schema's, as it has them.
            rule: what their names begin with.
            strict: whether a schema with keywords that cannot be enforced is refused.
            is_sorted: whether objects have their parts in the order of names.
        """
        self._grammar, self._form, self._definitions, self._rule = grammar, form, definitions, rule
        self._strict, self._is_sorted = strict, is_sorted
        self._references: dict[str, str] = {}
        self._num_rules = 0

    def can_say(self, schema: Any) -> bool:
        """Whether nothing of a schema is left to JSON."""
        before = self._num_json
        self.value(schema)
        return self._num_json == before

    _num_json = 0

    def value(self, schema: Any) -> str:
        """The values of a schema."""
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, Mapping):
            return self._json(schema)
        keys = set(schema) - NOTES
        if "$ref" in keys:
            return self._reference(schema) if keys == {"$ref"} else self._json(schema)
        if keys <= {"enum", "type"} and isinstance(schema.get("enum"), list) and schema["enum"]:
            return f"({' | '.join(map(self.constant, schema['enum']))})"
        if keys <= {"const", "type"} and "const" in keys:
            return self.constant(schema["const"])
        for name in ("anyOf", "oneOf"):
            if keys == {name} and isinstance(schema[name], list) and schema[name]:
                if name == "oneOf" and not self._are_apart(schema[name]):
                    return self._json(schema)
                return f"({' | '.join(map(self.value, schema[name]))})"
        kind = schema.get("type")
        if isinstance(kind, list) and kind and keys == {"type"}:
            return f"({' | '.join(self.value({'type': each}) for each in kind)})"
        if not keys:
            return self._anything()
        if kind in _NUMBERS or not isinstance(kind, str) or not keys <= OF_KIND.get(kind, set()):
            return self._json(schema)
        match kind:
            case "string":
                return self._text()
            case "boolean":
                return f"({self.constant(True)} | {self.constant(False)})"
            case "null":
                return self.constant(None)
            case "array":
                return self._list(schema)
            case _:
                return self._object(schema)

    def constant(self, value: Any) -> str:
        """Exactly this value."""
        grammar, form = self._grammar, self._form
        if isinstance(value, str):
            return self._quoted(value, form.quote)
        if value is True or value is False or value is None:
            return grammar.text(form.words[(True, False, None).index(value)])
        if isinstance(value, Mapping):
            names = self._ordered(value)
            items = [f"{self._key(name)} {self.constant(value[name])}" for name in names]
            return f'"{{" {self._joined(items)} "}}"'
        if isinstance(value, list):
            return f'"[" {self._joined([self.constant(item) for item in value])} "]"'
        return grammar.text(json.dumps(value))

    def _joined(self, items: list[str]) -> str:
        return f" {self._grammar.literal(self._form.comma)} ".join(items)

    def _ordered(self, names: Mapping[str, Any]) -> list[str]:
        return sorted(names, key=in_order) if self._is_sorted else list(names)

    def _json(self, schema: Any) -> str:
        self._num_json += not (isinstance(schema, Mapping) and schema.get("type") in _NUMBERS)
        merged = {**self._definitions, **schema} if isinstance(schema, Mapping) else schema
        return self._grammar.schema(self._new(), merged, strict=self._strict)

    def _new(self) -> str:
        self._num_rules += 1
        return f"{self._rule}_{self._num_rules}"

    def _add(self, body: str) -> str:
        return self._grammar.add(self._new(), body)

    def _text(self) -> str:
        opening, closing = self._form.quote
        if opening in _TEXTS:
            return self._grammar.add(f"{self._rule.upper()}_TEXT", _TEXTS[opening])
        if opening == closing == '"':
            return self._grammar.schema(f"{self._rule}_text", {"type": "string"})
        rest = self._grammar.up_to(f"{self._rule}_text", closing)
        return f"({self._grammar.literal(opening)} {rest})"

    def _quoted(self, text: str, quote: tuple[str, str]) -> str:
        grammar = self._grammar
        if quote == PYTHON.quote:
            return grammar.text(repr(text))
        if quote == TEXT.quote:
            inner = json.dumps(text, ensure_ascii=False)
            return grammar.text(json.dumps(inner, ensure_ascii=False)[1:-1])
        if quote == ('"', '"'):
            return grammar.text(json.dumps(text, ensure_ascii=False))
        inside = grammar.text(text) if text else ""
        return f"({grammar.literal(quote[0])} {inside} {grammar.literal(quote[1])})"

    def _key(self, name: str) -> str:
        return f"{self._quoted(name, self._form.key_quote)} {self._grammar.literal(self._form.colon)}"

    def _reference(self, schema: Mapping[str, Any]) -> str:
        path = schema["$ref"]
        if path not in self._references:
            target = resolved(schema, self._definitions)
            if target is schema:
                return self._json(schema)
            name = self._references[path] = self._new()
            self._grammar.add(name, self.value(target))
        return self._references[path]

    def _are_apart(self, options: list[Any]) -> bool:
        kinds = [option.get("type") if isinstance(option, Mapping) else None for option in options]
        kinds = ["number" if kind == "integer" else kind for kind in kinds]
        return None not in kinds and len(set(map(str, kinds))) == len(kinds)

    def _list(self, schema: Mapping[str, Any]) -> str:
        counts = counts_of(schema)
        if counts is None:
            return self._json(schema)
        least, most = counts
        if most == 0:
            return self._add('"[" "]"')
        item = self._add(self.value(schema.get("items", True)))
        more = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        items = f"{item} ({self._grammar.literal(self._form.comma)} {item}){more}"
        return self._add(f'"[" {items} "]"' if least else f'"[" ({items})? "]"')

    def _object(self, schema: Mapping[str, Any]) -> str:
        properties, required = schema.get("properties") or {}, set(schema.get("required") or [])
        more = schema.get("additionalProperties", True)
        if not isinstance(properties, Mapping) or not required <= set(properties):
            return self._json(schema)
        if self._form.key_quote == ("", "") and not all(map(str.isidentifier, properties)):
            return self._json(schema)
        if properties:
            items = [
                (self._add(f"{self._key(name)} {self.value(properties[name])}"), name in required)
                for name in self._ordered(properties)
            ]
            return self._add(f'"{{" {sequence(items, self._form.comma, self._grammar, self._new())} "}}"')
        if more is False:
            return self._add('"{" "}"')
        return self._add(f'"{{" {self._pairs(self._add(self.value(more)))} "}}"')

    def _pairs(self, value: str) -> str:
        """Any names, each with a value."""
        grammar, form = self._grammar, self._form
        if form.key_quote == form.quote and form.quote[0] in (*_TEXTS, '"'):
            key = self._text()
        elif form.key_quote == ("", ""):
            key = grammar.add(f"{self._rule.upper()}_KEY", r"/[A-Za-z_][A-Za-z0-9_]*/")
        else:
            name = grammar.add(f"{self._rule.upper()}_KEY", r"/[A-Za-z0-9_ .-]+/")
            key = f"{grammar.literal(form.key_quote[0])} {name} {grammar.literal(form.key_quote[1])}"
        pair = self._add(f"{key} {grammar.literal(form.colon)} {value}")
        return f"({pair} ({grammar.literal(form.comma)} {pair})*)?"

    def _anything(self) -> str:
        name = f"{self._rule}_any"
        if "" not in self._references:
            self._references[""] = name
            number = self._grammar.schema(f"{self._rule}_number", {"type": "number"})
            words = [self.constant(word) for word in (True, False, None)]
            items = f'"[" ({name} ({self._grammar.literal(self._form.comma)} {name})*)? "]"'
            options = [self._text(), number, *words, items, f'"{{" {self._pairs(name)} "}}"']
            self._grammar.add(name, " | ".join(options))
        return name


def counts_of(schema: Mapping[str, Any]) -> tuple[int, int | None] | None:
    """How many items a list has, at least and at most; None if a grammar cannot say it."""
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    counts = [least, least if most is None else most]
    if not all(isinstance(count, int) and 0 <= count <= _MOST_ITEMS for count in counts) or counts[1] < least:
        return None
    return least, most


def in_order(name: str) -> tuple[str, str]:
    """By which names are sorted, as templates do it."""
    return name.lower(), name


def sequence(items: list[tuple[str, bool]], between: str, grammar: AnswerGrammar, rule: str) -> str:
    """Rules in order, of which some may be missing, with a text between those that are there.

    Args:
        items: rules, each with whether it must be there.
        between: the text.
        grammar: gets the rules.
        rule: what their names begin with.
    """
    if not items:
        return ""
    if not between:
        return " ".join(name if needed else f"({name})?" for name, needed in items)
    # Rules from the end: what may follow where no item has come yet, and where one has.
    rest_none, rest_some, comma = "", "", grammar.literal(between)
    for place in range(len(items) - 1, -1, -1):
        name, needed = items[place]
        after = f" {rest_some}" if rest_some else ""
        some = f"{comma} {name}{after}"
        none = f"{name}{after}"
        if not needed:
            some = f"({some}){'' if rest_some else '?'}" + (f" | {rest_some}" if rest_some else "")
            none = f"({none}){'' if rest_none else '?'}" + (f" | {rest_none}" if rest_none else "")
        rest_some = grammar.add(f"{rule}_more_{place}", some)
        rest_none = grammar.add(f"{rule}_from_{place}", none)
    return rest_none
