"""Rewrites a JSON schema as one that llguidance can enforce.

What comes out allows the same JSON, or less where that cannot be helped: such as an array whose matching item
(`contains`) is one of the first. Keywords that cannot be enforced even so are left out, and told. llguidance checks
the syntax of what is left.
"""

import re
from collections.abc import Iterable
from itertools import combinations, permutations
from typing import Any

from mlxr.runtime.engine.constraint.closed_objects import closed_objects
from mlxr.runtime.engine.constraint.schema_negation import (
    Scope,
    UnknownError,
    any_of,
    are_disjoint,
    negated,
    pairs,
)
from mlxr.runtime.engine.constraint.schema_patterns import no_text_of, without_looks
from mlxr.runtime.engine.constraint.schema_references import LISTS_OF_SCHEMAS, SCHEMAS_BY_NAME, References
from mlxr.runtime.engine.errors import ConstraintError

_ENFORCED_FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"
_URI_PART = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*"
_FORMAT_PATTERNS = {
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$",
    "uri-reference": f"^{_URI_PART}(?:#{_URI_PART})?$",
}
_SCHEMAS = ("items", "additionalProperties", "additionalItems")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_WITHOUT_EFFECT = ("minContains", "maxContains", "then", "else", "$recursiveAnchor", "nullable")
_NAMES = ("$schema", "$id", "id", "$ref", "$dynamicRef", "$recursiveRef", "$dynamicAnchor")
_MOST_SCHEMAS = 50_000
_MOST_CHOICES = 64
_MOST_UNIQUE = 4
_FIRST_PLACES = 4


class _NotEnforcedError(Exception):
    """A keyword cannot be enforced."""


def rewrite_schema(schema: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A schema that can be enforced, and what of the given one it does not hold: `uniqueItems (#/properties/tags)`.

    Args:
        schema: not changed.

    Raises:
        ConstraintError: it is too large.
    """
    rewriter = _Rewriter(schema)
    rewritten = rewriter.rewrite(schema, "#")
    if moved := rewriter.finish():
        rewritten["$defs"] = {**(rewritten.get("$defs") or {}), **moved}
    return rewritten, list(dict.fromkeys(rewriter.left_out))


class _Rewriter:
    """Attributes: left_out: keywords and where they stand."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._is_old = re.search(r"draft-0[3467]", str(root.get("$schema"))) is not None
        self._is_draft_4 = re.search(r"draft-0[34]", str(root.get("$schema"))) is not None
        self._references = References(root)
        self._scope = Scope(self._references.resolve)
        self._closed_objects = closed_objects(root, Scope(self._references.resolve))
        self._num_written = 0
        self.left_out: list[str] = []

    def finish(self) -> dict[str, Any]:
        """The schemas that references need and that no longer stand where they were."""
        made: dict[str, Any] = {}
        moved = self._references.moved
        while len(made) < len(moved):
            for place, name in list(moved.items()):
                if name not in made:
                    made[name] = self.rewrite(self._references.resolve(place), place)
        return made

    def rewrite(self, schema: Any, place: str) -> Any:
        """A schema inside the root, or the root.

        Args:
            schema: the schema.
            place: where it stands, for messages.
        """
        if not isinstance(schema, dict):
            return schema
        self._num_written += 1
        if self._num_written > _MOST_SCHEMAS:
            raise ConstraintError(
                "json_schema is too large when it is written out: make it smaller or simpler", "json_schema"
            )
        written: dict[str, Any] = {}
        added: list[Any] = []
        if self._is_old and isinstance(schema.get("$ref"), str):  # whose neighbours have no meaning there
            schema = {key: part for key, part in schema.items() if key in ("$ref", "definitions", "$defs")}
        for key, value in schema.items():
            try:
                self._rewrite_key(key, value, schema, place, written, added)
            except (_NotEnforcedError, UnknownError):
                self.left_out.append(f"{key} ({place})")
            except (TypeError, ValueError, KeyError, AttributeError):
                written[key] = value  # it is no schema: llguidance says why
        if schema.get("nullable") is True and "type" in written:
            types = [written["type"]] if isinstance(written["type"], str) else written["type"]
            written["type"] = [*types, *(["null"] if "null" not in types else [])]
        if added:
            written["allOf"] = [*(written.get("allOf") or []), *added]
        if id(schema) in self._closed_objects:
            written["additionalProperties"] = False
        return written

    def _rewrite_key(
        self, key: str, value: Any, schema: dict[str, Any], place: str, written: dict[str, Any], added: list[Any]
    ) -> None:
        """Writes one keyword, under its name or as a schema that must hold as well."""
        inner = f"{place}/{key}"
        if isinstance(value, str) and key in _NAMES:
            self._rewrite_name(key, value, place, written)
        elif key in SCHEMAS_BY_NAME and isinstance(value, dict):
            written[key] = {name: self.rewrite(part, f"{inner}/{name}") for name, part in value.items()}
        elif key == "prefixItems" and isinstance(value, dict):  # which some writers, and llama.cpp, mean as `items`
            added.append(self.rewrite({"items": value}, inner))
        elif key == "items" and isinstance(value, list):
            written["prefixItems"] = [self.rewrite(part, f"{inner}/{number}") for number, part in enumerate(value)]
            if "additionalItems" in schema:
                written["items"] = self.rewrite(schema["additionalItems"], f"{place}/additionalItems")
        elif key == "additionalItems":
            pass  # it means nothing beside an `items` that is a schema
        elif key in LISTS_OF_SCHEMAS and isinstance(value, list):
            parts = [self.rewrite(part, f"{inner}/{number}") for number, part in enumerate(value)]
            written[key] = [*(written.get(key) or []), *parts]
        elif key in _SCHEMAS:
            written[key] = self.rewrite(value, inner)
        elif key in _COUNTS and isinstance(value, float) and value.is_integer():
            written[key] = int(value)
        elif key == "required" and isinstance(value, list):
            written[key] = [name for name in value if isinstance(name, str)]
        elif key == "required" and isinstance(value, bool):
            raise _NotEnforcedError  # draft 3's, at a property
        elif key == "format" and isinstance(value, str):
            if value in _ENFORCED_FORMATS:
                written[key] = value
            elif value in _FORMAT_PATTERNS:  # others are annotations
                added.append({"pattern": _FORMAT_PATTERNS[value]})
        elif key == "pattern" and isinstance(value, str):
            patterns = without_looks(value)
            if patterns is None:
                raise _NotEnforcedError
            if len(patterns) == 1:
                written[key] = patterns[0]
            else:
                added += [{"pattern": pattern} for pattern in patterns]
        elif (rule := getattr(self, "_" + _RULES.get(key, ""), None)) is not None:
            added += rule(value, schema, place)
        elif key not in _WITHOUT_EFFECT:
            written[key] = value

    def _rewrite_name(self, key: str, value: str, place: str, written: dict[str, Any]) -> None:
        """Writes a keyword that names a schema or refers to one. What is written is of draft 2020-12."""
        if key in ("$ref", "$dynamicRef", "$recursiveRef"):
            written["$ref"] = self._references.now(value)
            if key != "$ref":
                self.left_out.append(f"{key} ({place}), which is taken as $ref")
        elif key == "$dynamicAnchor":
            written.setdefault("$anchor", value)
        elif key == "$id" or (key == "id" and self._is_draft_4):
            if re.fullmatch(r"#[A-Za-z_][^/]*", value):
                written["$anchor"] = value[1:]
            elif not value.startswith("#"):
                written["$id"] = value

    def _one_of(self, value: Any, schema: dict[str, Any], place: str) -> list[Any]:
        if not isinstance(value, list) or not value:
            return [{"oneOf": value}]
        base = {key: part for key, part in schema.items() if key not in ("oneOf", "$defs", "definitions")}
        wholes = [{"allOf": [base, option]} for option in value]
        options: list[Any] = [[option] for option in value]
        try:
            for (a, whole_a), (b, whole_b) in pairs(list(enumerate(wholes))):
                if not are_disjoint(whole_a, whole_b, self._scope):
                    not_a, not_b = self._negated(value[a]), self._negated(value[b])
                    options[a].append(not_b)
                    options[b].append(not_a)
        except UnknownError:
            self.left_out.append(f"oneOf ({place}), which is taken as anyOf")
            options = [[option] for option in value]
        parts = []
        for number, (option, *others) in enumerate(options):
            written = self.rewrite(option, f"{place}/oneOf/{number}")
            if False in [other for other in others if isinstance(other, bool)]:
                continue
            more = [self.rewrite(other, f"{place}/oneOf/{number}") for other in others if other is not True]
            parts.append({"allOf": [written, *more]} if more else written)
        return [any_of(parts)]

    def _not(self, value: Any, schema: dict[str, Any], place: str) -> list[Any]:
        if isinstance(value, dict) and set(value) == {"type"} and value["type"] in ("integer", ["integer"]):
            raise _NotEnforcedError
        return [self.rewrite(self._negated(value), f"{place}/not")]

    def _if(self, value: Any, schema: dict[str, Any], place: str) -> list[Any]:
        then, other = schema.get("then", True), schema.get("else", True)
        if then is True and other is True:
            return []
        try:
            opposite: Any = self._negated(value)
        except UnknownError:
            opposite = then  # both hold then, whatever the condition says
        options = []
        for condition, result, name in ((value, then, "then"), (opposite, other, "else")):
            parts = [self.rewrite(part, f"{place}/{name}") for part in (condition, result) if part is not True]
            if condition is not False and result is not False:
                options.append({"allOf": parts} if parts else True)
        return [any_of(options)]

    def _dependent(self, value: Any, schema: dict[str, Any], place: str) -> list[Any]:
        if not isinstance(value, dict):
            raise _NotEnforcedError
        added: list[Any] = []
        for name, needed in value.items():
            absent: dict[str, Any] = {"properties": {name: False}}
            if isinstance(needed, list):
                if needed:
                    added.append({"anyOf": [absent, {"required": [name, *needed]}]})
            elif needed is False:
                added.append(absent)
            elif needed not in (True, {}):
                written = self.rewrite(needed, f"{place}/{name}")
                added.append({"anyOf": [absent, {"allOf": [{"required": [name]}, written]}]})
        return added

    def _property_names(self, value: Any, schema: dict[str, Any], place: str) -> list[Any]:
        if value is False:
            return [{"maxProperties": 0}]
        if isinstance(value, dict) and isinstance(value.get("$ref"), str):
            beside = {key: part for key, part in value.items() if key != "$ref"}
            value = {**self._references.resolve(value["$ref"]), **beside}
        if not isinstance(value, dict):
            return []
        patterns = []
        for key, part in value.items():
            if key == "pattern":
                inside = without_looks(part)
                if inside is None:
                    raise _NotEnforcedError
                patterns += inside
            elif key in ("enum", "const"):
                names = [name for name in (part if key == "enum" else [part]) if isinstance(name, str)]
                patterns.append(f"^(?:{'|'.join(map(re.escape, names))})$")
            elif key == "not" and isinstance(part, dict) and set(part) <= {"enum", "const"} and len(part) == 1:
                names = part["enum"] if "enum" in part else [part["const"]]
                patterns.append(no_text_of([name for name in names if isinstance(name, str)]))
            elif key in ("anyOf", "allOf", "oneOf", "not", "if", "$ref"):
                raise _NotEnforcedError
        least, most = value.get("minLength", 0), value.get("maxLength", "")
        if "minLength" in value or "maxLength" in value:
            patterns.append(rf"^[\s\S]{{{least},{most}}}$")
        if len(patterns) > 1 or (patterns and schema.get("patternProperties")):
            raise _NotEnforcedError  # llguidance takes only patterns that have no name in common
        return [{"patternProperties": {patterns[0]: True}, "additionalProperties": False}] if patterns else []

    def _contains(self, value: Any, schema: dict[str, Any], place: str) -> list[Any]:
        least, most = int(schema.get("minContains", 1)), schema.get("maxContains")
        written = self.rewrite(value, f"{place}/contains")
        if most is not None:
            if most < least:
                return [{"type": [*_NO_ARRAY]}]
            rest = self.rewrite(self._negated(value), f"{place}/contains")
            counts = range(least, min(int(most), least + _FIRST_PLACES) + 1)
            return [any_of([{"prefixItems": [written] * count, "items": rest, "minItems": count} for count in counts])]
        if least == 0:
            return []
        if least > _MOST_CHOICES:
            raise _NotEnforcedError
        tuples = len(schema.get("prefixItems") or []) + 1
        places = range(max(tuples, _FIRST_PLACES)) if least == 1 else [0]
        return [
            any_of(
                [
                    {"prefixItems": [True] * at + [written] * least, "minItems": at + least}
                    for at in list(places)[:_MOST_CHOICES]
                ]
            )
        ]

    def _unique_items(self, value: Any, schema: dict[str, Any], place: str) -> list[Any]:
        if value is not True or schema.get("maxItems", 2) < 2:
            return []
        items = schema.get("items")
        if isinstance(items, dict) and isinstance(items.get("$ref"), str):
            items = self._references.resolve(items["$ref"])
        values: list[Any] | None = None
        if isinstance(items, dict):
            if isinstance(items.get("enum"), list):
                values = items["enum"]
            elif "const" in items:
                values = [items["const"]]
            elif items.get("type") in ("boolean", "null"):
                values = [True, False] if items["type"] == "boolean" else [None]
        if values is None or len(values) > _MOST_UNIQUE or schema.get("prefixItems"):
            raise _NotEnforcedError
        orders = [list(order) for count in range(len(values) + 1) for order in permutations(values, count)]
        return [
            {
                "anyOf": [
                    {"prefixItems": [{"const": each} for each in order], "items": False, "minItems": len(order)}
                    for order in orders
                ]
            }
        ]

    def _least_and_most_properties(self, value: Any, schema: dict[str, Any], place: str) -> list[Any]:
        """Both `minProperties` and `maxProperties`, which llguidance knows where all properties are required."""
        names = [name for name, part in (schema.get("properties") or {}).items() if part is not False]
        optional = [name for name in names if name not in (schema.get("required") or [])]
        bounds = {key: int(schema[key]) for key in ("minProperties", "maxProperties") if key in schema}
        if not optional or ("minProperties" in bounds and bounds == {"minProperties": 0}):
            return [bounds] if bounds else []
        closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        least = bounds.get("minProperties", 0) - (len(names) - len(optional))
        most = bounds.get("maxProperties", len(names) + 1) - (len(names) - len(optional))
        if least > 0 and "maxProperties" not in bounds and (least == 1 or closed):
            sets: Iterable[tuple[str, ...]] = combinations(optional, least)
            options: list[Any] = [{"required": list(each)} for each in _few(sets)]
            if not closed:
                options.append({"properties": dict.fromkeys(optional, False), **bounds})
            return [{"anyOf": options}]
        sizes = range(max(least, 0) if closed else 0, min(most, len(optional)) + 1)
        sets = (each for size in sizes for each in combinations(optional, size))
        return [
            any_of(
                [
                    {
                        "properties": {name: name in each or False for name in optional},
                        "required": [*(schema.get("required") or []), *each],
                        **bounds,
                    }
                    for each in _few(sets)
                ]
            )
        ]

    def _unevaluated_properties(self, value: Any, schema: dict[str, Any], place: str) -> list[Any]:
        if value in (True, {}) or "additionalProperties" in schema:
            return []
        return [self._closed(schema, self.rewrite(value, f"{place}/unevaluatedProperties"), {}, {}, 0)]

    def _closed(self, schema: Any, rest: Any, names: dict[str, Any], patterns: dict[str, Any], depth: int) -> Any:
        """A schema that gives `rest` to the properties that neither `schema` nor the names and patterns know."""
        names, patterns, choices = dict(names), dict(patterns), list[list[tuple[Any, Any]]]()
        self._known(schema, names, patterns, choices, depth)
        if len(choices) > 1:
            raise _NotEnforcedError
        if not choices:
            return {"properties": names, "patternProperties": patterns, "additionalProperties": rest}
        return any_of(
            [
                {"allOf": [self.rewrite(holds, "#"), self._closed(known, rest, names, patterns, depth + 1)]}
                for holds, known in choices[0]
                if holds is not False
            ]
        )

    def _known(
        self,
        schema: Any,
        names: dict[str, Any],
        patterns: dict[str, Any],
        choices: list[list[tuple[Any, Any]]],
        depth: int,
    ) -> None:
        """Collects the names and patterns that a schema knows for certain, and its alternatives.

        An alternative is what holds then, and the schema whose properties are known then.
        """
        if not isinstance(schema, dict):
            return
        self._scope.step()
        if depth > _MOST_CHOICES:
            raise _NotEnforcedError
        names.update(dict.fromkeys(schema.get("properties") or {}, True))
        patterns.update(dict.fromkeys(schema.get("patternProperties") or {}, True))
        if schema.get("additionalProperties") not in (None, False):
            patterns.update({"^": True})
        for part in schema.get("allOf") or []:
            self._known(part, names, patterns, choices, depth + 1)
        if "$ref" in schema:
            self._known(self._references.resolve(schema["$ref"]), names, patterns, choices, depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                choices.append([(option, option) for option in schema[key]])
        if "if" in schema:
            both, other = {"allOf": [schema["if"], schema.get("then", True)]}, schema.get("else", True)
            choices.append([(both, both), ({"allOf": [self._negated(schema["if"]), other]}, other)])

    def _unevaluated_items(self, value: Any, schema: dict[str, Any], place: str) -> list[Any]:
        first = schema.get("items") if isinstance(schema.get("items"), list) else schema.get("prefixItems")
        if value in (True, {}) or isinstance(schema.get("items"), dict | bool):
            return []
        if isinstance(schema.get("items"), list) and "additionalItems" in schema:
            return []
        if set(schema) & {"allOf", "anyOf", "oneOf", "if", "$ref", "contains", "$dynamicRef", "dependentSchemas"}:
            raise _NotEnforcedError
        return [
            {
                "prefixItems": [True] * len(first or []),
                "items": self.rewrite(value, f"{place}/unevaluatedItems"),
            }
        ]

    def _negated(self, schema: Any) -> Any:
        return negated(schema, self._scope)


_NO_ARRAY = ("null", "boolean", "number", "string", "object")
_RULES = {
    "oneOf": "one_of",
    "not": "not",
    "if": "if",
    "dependencies": "dependent",
    "dependentRequired": "dependent",
    "dependentSchemas": "dependent",
    "propertyNames": "property_names",
    "contains": "contains",
    "uniqueItems": "unique_items",
    "minProperties": "least_and_most_properties",
    "maxProperties": "least_and_most_properties",
    "unevaluatedProperties": "unevaluated_properties",
    "unevaluatedItems": "unevaluated_items",
}


def _few(sets: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    few = []
    for each in sets:
        few.append(each)
        if len(few) > _MOST_CHOICES:
            raise _NotEnforcedError
    return few
