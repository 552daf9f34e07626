"""JSON schemas as others write them: what jsonschema refuses is never allowed, and what it takes is, as far as told.

The schemas are made up; their shapes are those of pydantic, zod, MCP tools and old drafts.
"""

import json
import logging
import random
from typing import Any

import jsonschema
import pytest

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.constraint import unenforced
from mlxr_tests.byte_tokenizer import ByteTokenizer
from mlxr_tests.constrained import bytes_of, random_answer
from mlxr_tests.outside_cases import Judge

TOKENIZER = ByteTokenizer()
JUDGE = Judge(TOKENIZER)
DRAFT_4, DRAFT_7 = ({"$schema": f"http://json-schema.org/draft-0{number}/schema#"} for number in (4, 7))
NODE = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
}
SHAPE = [{"properties": {"kind": {"const": "dot"}}}, {"properties": {"kind": {"const": "box"}, "w": {"minimum": 0}}}]
PASSWORD = r"^(?=.*[A-Z])(?=.*\d)(?!admin|root)[^ ]{4,}$"
CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "negated type": ({"not": {"type": ["string", "null"]}}, ["a", None, 1, True, [], {}]),
    "negated values": ({"not": {"enum": ["ab", "a", 3, None]}}, ["", "a", "ab", "abc", "b", 2, 3, 3.5, 4, None, [1]]),
    "negated object": (
        {"not": {"required": ["a"], "properties": {"b": {"minimum": 2}}}},
        [{}, {"b": 1}, {"a": 1}, {"b": 1, "a": 1}, {"b": 2, "a": 1}, 3],
    ),
    "one of overlapping objects": (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}},
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
    ),
    "one of tagged objects": (
        {"oneOf": [{"type": "object", "required": ["kind"], **shape} for shape in SHAPE]},
        [{"kind": "dot"}, {"kind": "box", "w": 1}, {"kind": "box", "w": -1}, {"kind": "x"}, {}],
    ),
    "one of numbers": ({"oneOf": [{"maximum": 5}, {"minimum": 3}], "type": "number"}, [1, 3, 4.5, 5, 6]),
    "condition": (
        {
            "properties": {"unit": {"enum": ["m", "s"]}, "length": {"type": "integer"}, "time": {"type": "integer"}},
            "required": ["unit"],
            "if": {"properties": {"unit": {"const": "m"}}},
            "then": {"required": ["length"]},
            "else": {"required": ["time"], "properties": {"length": False}},
        },
        [{"unit": "m"}, {"unit": "m", "length": 1}, {"unit": "s", "length": 1}, {"unit": "s", "time": 2}],
    ),
    "condition without an opposite": (
        {"if": {"multipleOf": 2}, "then": {"minimum": 10}, "type": "integer"},
        [1, 2, 10, 11, 12],
    ),
    "dependencies": (
        {
            "dependentRequired": {"a": ["b"]},
            "dependentSchemas": {"c": {"properties": {"a": False}}},
            "properties": {"a": {}, "b": {}, "c": {}},
        },
        [{}, {"a": 1}, {"a": 1, "b": 1}, {"c": 1}, {"a": 1, "b": 1, "c": 1}, {"b": 1, "c": 1}],
    ),
    "old dependencies": (
        DRAFT_7 | {"dependencies": {"a": ["b"], "b": {"minProperties": 2}}, "properties": {"a": {}, "b": {}}},
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"b": 1, "x": 1}],
    ),
    "names of properties": (
        {"propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "integer"}},
        [{}, {"ab": 1}, {"a1": 1}, {"a": "b"}, []],
    ),
    "few properties": (
        {"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 1, "maxProperties": 2},
        [{}, {"a": 1}, {"a": 1, "c": 1}, {"x": 1}, {"a": 1, "b": 1, "c": 1}, {"b": 1, "x": 1, "y": 1}],
    ),
    "tuples": (
        {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {"type": "null"}, "minItems": 1},
        [[], ["a"], ["a", 1], [1], ["a", 1, None], ["a", 1, 2]],
    ),
    "open tuple": ({"type": "array", "prefixItems": [{"type": "string"}]}, [[], ["a"], [1], ["a", {}]]),
    "old tuple": (
        DRAFT_7 | {"items": [{"type": "string"}, {"$ref": "#/items/0"}], "additionalItems": False},
        [[], ["a", "b"], ["a", 1], ["a", "b", "c"]],
    ),
    "closed by what is not evaluated": (
        {
            "allOf": [{"$ref": "#/$defs/base"}],
            "properties": {"b": {"type": "integer"}},
            "unevaluatedProperties": False,
            "$defs": {"base": {"properties": {"a": {"type": "string"}}}},
        },
        [{}, {"a": "x", "b": 1}, {"a": 1}, {"c": 1}],
    ),
    "unique words": (
        {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "uniqueItems": True},
        [[], ["red"], ["blue", "red"], ["red", "red"], ["blue", "green", "red"], ["pink"]],
    ),
    "contains": ({"contains": {"type": "integer"}, "maxItems": 3}, [[], [1], ["a", 1], ["a", "b"], ["a", "b", 1]]),
    "recursion": (NODE, [{}, {"id": 1, "next": {"id": 2, "next": None}}, {"next": {"id": "a"}}, {"next": 3}]),
    "pointers into properties": (
        {"properties": {"a/b": {"type": "integer"}, "c": {"$ref": "#/properties/a~1b"}, "d": {"$ref": "#/x/y"}},
         "x": {"y": {"not": {"type": "string"}}}},
        [{"a/b": 1, "c": 2}, {"c": "x"}, {"d": "x"}, {"d": 1}],
    ),
    "neighbours of a reference": (
        {"$ref": "#/$defs/word", "maxLength": 2, "$defs": {"word": {"type": "string", "minLength": 1}}},
        ["", "a", "ab", "abc", 1],
    ),
    "old neighbours of a reference": (
        DRAFT_7 | {"$ref": "#/definitions/word", "maxLength": 2, "definitions": {"word": {"type": "string"}}},
        ["", "abc", 1],
    ),
    "old name beside a reference": (  # which leaves the base as it is
        {
            **DRAFT_7,
            "$id": "http://a/base/",
            "definitions": {
                "text": {"$id": "http://a/word.json", "type": "string"},
                "number": {"$id": "word.json", "type": "number"},
            },
            "allOf": [{"$id": "http://a/", "$ref": "word.json"}],
        },
        ["a", 1],
    ),
    "old bounds": (DRAFT_4 | {"minimum": 2, "exclusiveMinimum": True, "type": "integer"}, [1, 2, 3]),
    "look-ahead": ({"type": "string", "pattern": PASSWORD}, ["Abc1", "abc1", "ABCD", "A1", "adminA1", "rooA1", "A 11"]),
    "negative look-ahead": ({"pattern": r"^(?!(?:CON|AUX)$)\w+$"}, ["CON", "AUX", "CONS", "CO", "X", ""]),
    "a number as text": ({"pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, ["1.5", "-.5", "+", ".", "", "0", "1.5.", 2]),
    "annotations": (
        {"type": "string", "format": "phone-number", "discriminator": {"propertyName": "a"}, "deprecated": True,
         "minItems": 3, "x-order": 1, "contentEncoding": "base64"},
        ["", "a", 1],
    ),
    "odd counts": ({"minLength": 1.0, "maxLength": 2.0, "required": ["zz"]}, ["", "a", "abc", {}, {"zz": 1}]),
    "any": ({}, [None, 1, "a", [], {"a": {}}]),
    "properties that are named": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}]}},
            "required": ["a"],
            "$defs": {"c": {"type": "object", "properties": {"d": {}}}},
        },
        [{"a": 1}, {"a": 1, "z": 1}, {"a": 1, "b": {"d": 1}}, {"a": 1, "b": {"e": 1}}, {"b": None}],
    ),
    "tagged properties that are named": (
        {"oneOf": [{"type": "object", "required": ["kind"], **shape} for shape in SHAPE]},
        [{"kind": "dot"}, {"kind": "dot", "w": 1}, {"kind": "box", "w": 1}, {"kind": "box", "w": -1}],
    ),
    "named, and others too": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True}, [{}, {"a": 1}, {"z": 1}, 1],
    ),
    "named, and another is required": ({"type": "object", "properties": {"a": {}}, "required": ["z"]}, [{}, {"z": 1}]),
    "named by several": (
        {
            "type": "object",
            "properties": {
                "x": {"$ref": "#/$defs/base"},
                "y": {"allOf": [{"$ref": "#/$defs/base"}, {"type": "object", "properties": {"b": {}}}]},
            },
            "$defs": {"base": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        },
        [{"y": {"a": 1, "b": 2}}, {"x": {"a": 1}}, {"x": {"c": 1}}, {"y": {"a": "c"}}],
    ),
    "named by several, of which one has an address of its own": (
        {
            "type": "object",
            "properties": {
                "x": {"$id": "http://h/base", "type": "object", "properties": {"a": {"type": "integer"}}},
                "y": {"allOf": [{"$ref": "http://h/base"}, {"type": "object", "properties": {"b": {}}}]},
            },
        },
        [{"y": {"a": 1, "b": 2}}, {"x": {"a": 1}}, {"x": {"c": 1}}, {"y": {"a": "c"}}],
    ),
    "named by what follows": (
        {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}, "p": {"type": "object", "properties": {"x": {}}}},
            "required": ["a"],
            "if": {"properties": {"a": {"const": 1}}},
            "then": {"type": "object", "properties": {"p": {"required": ["b"]}}, "required": ["p"]},
        },
        [{"a": 1, "p": {"b": 1}}, {"a": 1, "p": {}}, {"a": 1}, {"a": 2}, {"a": 2, "p": {"c": 1}}, {}],
    ),
    "named by one of overlapping objects": (
        {"oneOf": [{"type": "object", "properties": {name: {"type": "string"}}} for name in "ab"]},
        [{"a": "x", "b": 1}, {"a": "x", "b": "y"}, {"b": "y", "a": 1}, {"a": 1}],
    ),
    "false inside": ({"properties": {"a": False}, "items": False}, [{}, {"a": 1}, {"b": 1}, [], [1]]),
}  # fmt: skip
NARROWER = {
    "condition without an opposite": [1],
    "properties that are named": [{"a": 1, "z": 1}, {"a": 1, "b": {"e": 1}}],
    "tagged properties that are named": [{"kind": "dot", "w": 1}],
}
"""What is valid and yet not allowed: the schema cannot be enforced otherwise, or means more than it says."""


@pytest.mark.parametrize("name", CASES)
def test_what_is_allowed_is_what_jsonschema_takes(name: str) -> None:
    schema, values = CASES[name]
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    constraint = JUDGE.constraint("json_schema", schema)
    allowed = [value for value in values if JUDGE.allows(constraint, (json.dumps(value),))]
    assert not unenforced(schema)
    assert allowed == [value for value in values if validator.is_valid(value) and value not in NARROWER.get(name, [])]
    assert 0 < len(allowed) < len(values) or not schema


@pytest.mark.parametrize(
    ("schema", "left_out"),
    [
        ({"properties": {"a": {"items": {"type": "string"}, "uniqueItems": True}}}, "uniqueItems (#/properties/a)"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf (#), which is taken as anyOf"),
        ({"not": {"multipleOf": 3}}, "not (#)"),
        ({"pattern": r"^(a)\1$"}, "pattern (#)"),
        ({"items": {"pattern": r"(?<=a)b"}}, "pattern (#/items)"),
        ({"items": {"properties": {"a": {"required": True}}}}, "required (#/items/properties/a)"),
        ({"$dynamicRef": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "$dynamicRef (#), which is taken as $ref"),
    ],
    ids=str,
)
def test_what_cannot_be_enforced_is_told_or_refused(
    schema: dict[str, Any], left_out: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert unenforced(schema) == [left_out]
    with caplog.at_level(logging.WARNING):
        JUDGE.constraint("json_schema", schema)
    assert caplog.messages == [f"json_schema: not enforced: {left_out}"]
    with pytest.raises(RequestError, match="json_schema has keywords that cannot be enforced: "):
        JUDGE.constraint("json_schema", schema, strict=True)


def test_a_format_that_llguidance_lacks() -> None:
    """The examples of RFC 6901, and some that are none."""
    constraint = JUDGE.constraint("json_schema", {"type": "string", "format": "json-pointer"})
    texts = ("", "/foo", "/foo/0", "/", "/a~1b", "/m~0n", "/ ", "foo", "/~", "/a~2")
    assert [text for text in texts if JUDGE.allows(constraint, (json.dumps(text),))] == list(texts[:7])


def test_small_schemas_that_are_large_problems_end_soon() -> None:
    options = [{"properties": {name: {"enum": [name, 1]}}} for name in "abcdefghijkl"]
    deep: dict[str, Any] = {"required": ["a"]}
    for _ in range(6):
        deep = {"oneOf": [deep, {"not": deep}, {"anyOf": [deep, {"minLength": 1}]}]}
    for schema in ({"oneOf": options, "not": {"allOf": [{"oneOf": options}] * 5}}, deep):
        try:
            unenforced(schema)
        except RequestError as error:
            assert "too large" in str(error)


def test_random_answers_follow_random_schemas() -> None:
    """Of keywords that llguidance lacks, inside each other."""
    chance, judged = random.Random(5), 0
    while judged < 15:
        schema = _random_schema(chance, 2)
        if unenforced(schema):
            continue
        try:
            constraint = JUDGE.constraint("json_schema", schema)
        except RequestError:
            continue
        try:
            answer = bytes_of(TOKENIZER, random_answer(constraint, TOKENIZER, judged, most=400)).decode()
        except AssertionError:
            continue  # too long
        jsonschema.Draft202012Validator(schema).validate(json.loads(answer))
        judged += 1


def _random_schema(chance: random.Random, depth: int) -> dict[str, Any]:
    inner = (
        (lambda: _random_schema(chance, depth - 1)) if depth else lambda: {"type": chance.choice(["null", "string"])}
    )
    schema: dict[str, Any] = {"type": chance.choice(["object", "object", "integer", ["boolean", "object"]])}
    if "object" in schema["type"]:
        schema["properties"] = {name: inner() for name in chance.sample("abc", 2)}
        schema["additionalProperties"] = False
    for key in chance.sample(["not", "oneOf", "if", "dependentRequired", "minProperties", "required", "enum"], 2):
        if key in ("not", "if"):
            schema[key] = {"required": chance.sample("abc", 1)}
        elif key == "enum":
            schema[key] = [1, {"a": None}, True, {}]
        else:
            schema[key] = {
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"type": "integer"}],
                "dependentRequired": {"a": ["b"]},
                "minProperties": 1,
                "required": ["b"],
            }[key]
    return schema | ({"then": {"required": ["b"]}} if "if" in schema else {})
