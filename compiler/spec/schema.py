"""The JSON schema of a spec, for editors, and descriptions of its places in words.

The schema is the only description of what is expected where: editors complete keys by it, and spec errors quote it.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from mlxr.compiler.spec.fields import INT32_MAX
from mlxr.compiler.spec.model import ModelSpec

Schema = dict[str, Any]


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that pydantic derives from field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never."""
        return False


class _Described(_Untitled):
    """Describes each key by the docstring below its field.

    Pydantic can do this too (`use_attribute_docstrings`), but at every import, of which it takes a fifth of the time.
    """

    def model_schema(self, schema: Any) -> Schema:
        """The schema of one section."""
        section = super().model_schema(schema)
        for name, text in _docstrings(schema["cls"]).items():
            if name in section.get("properties", ()):
                section["properties"][name].setdefault("description", text)
        return section


@cache
def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings below the fields of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef), f"{model} is a class"
    texts = {}
    for statements in pairwise(body.body):
        match statements:
            case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text)))):
                texts[name] = inspect.cleandoc(text)
    return texts


def schema_of(model: type[BaseModel], *, described: bool = False) -> Schema:
    """The JSON schema of any model; `described`: with the docstrings of its fields."""
    return model.model_json_schema(schema_generator=_Described if described else _Untitled)


def spec_schema() -> Schema:
    """The JSON schema of a spec file, as editors read it."""
    schema = schema_of(ModelSpec, described=True)
    sections = schema["$defs"]
    attention = sections["Attention"]
    attention["required"] = [name for name in attention["required"] if name != "head_dim"]
    layer = sections["LayerType"]
    del layer["required"]
    for key in ("attention", "mlp", "recurrent"):
        # The loader completes what a layer type leaves out; an editor sees what may be written.
        for option in layer["properties"][key]["anyOf"]:
            section = option.get("$ref", "").rpartition("/")[2]
            if section:
                sections[f"{section}Changes"] = {k: v for k, v in sections[section].items() if k != "required"}
                option["$ref"] = f"#/$defs/{section}Changes"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "MLXR model spec"}


class SchemaNode:
    """A node of a schema. Follows references and looks through `or null`."""

    def __init__(self, root: Schema, node: Schema | None = None) -> None:
        self._root = root
        self.node = self._resolve(root if node is None else node)

    def _resolve(self, node: Schema) -> Schema:
        while True:
            if "$ref" in node:
                node = self._root["$defs"][node["$ref"].rpartition("/")[2]]
            elif len(node.get("allOf", ())) == 1:
                node = node["allOf"][0]
            elif options := [option for option in node.get("anyOf", ()) if option.get("type") != "null"]:
                node = options[0]
            else:
                return node

    @property
    def variants(self) -> dict[str, str]:
        """Schema references of the possible sections by their `kind`; empty if there is one section."""
        return dict(self.node.get("discriminator", {}).get("mapping", {}))

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of a section."""
        return tuple(self.node.get("properties", ()))

    def variant(self, kind: str) -> "SchemaNode":
        """One of the possible sections."""
        return SchemaNode(self._root, {"$ref": self.variants[kind]})

    def child(self, key: str | int) -> "SchemaNode":
        """The place of a key's value; an empty place if the key is unknown."""
        for name in ("properties", "items", "additionalProperties"):
            node = self.node.get(name)
            if name == "properties" and node and key in node:
                return SchemaNode(self._root, node[key])
            if name != "properties" and isinstance(node, dict):
                return SchemaNode(self._root, node)
        return SchemaNode(self._root, {"type": "unknown"})

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """Paths of all keys below."""
        for kind in self.variants:
            yield from self.variant(kind).walk(path)
        for key in self.keys:
            yield (*path, key)
            yield from self.child(key).walk((*path, key))

    @property
    def choices(self) -> tuple[str, ...]:
        """Values of a fixed list, or none."""
        return tuple(self.node["enum"] if "enum" in self.node else [self.node["const"]] if "const" in self.node else ())

    def describe_noun(self) -> str:
        """The kind of number expected here, without its bounds."""
        return "a whole number" if self.node.get("type") == "integer" else "a number"

    def describe(self) -> str:
        """What is expected here, in words."""
        kind = self.node.get("type")
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}" if len(self.choices) > 1 else str(self.choices[0])
        if self.variants:
            return f"a section with kind {', '.join(self.variants)}"
        if kind == ["integer", "string"]:
            return "a size such as 512MiB, 8GiB or a number of bytes"
        if kind == ["integer", "string", "array"]:
            return "a size such as 512MiB, 8GiB or a number of bytes, or a list of sizes"
        if kind in ("integer", "number"):
            return _describe_number(self.describe_noun(), self.node)
        if kind == "object":
            return f"a section with {', '.join(self.keys)}" if self.keys else "a section"
        return {"boolean": "true or false", "string": "text", "array": "a list"}.get(str(kind), "another value")


def show_number(value: float) -> str:
    """A bound as people write it: 1 instead of 1.0, and no exponents in whole numbers."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def _describe_number(noun: str, node: Schema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None and high != INT32_MAX:
        return f"{noun} from {show_number(low)} to {show_number(high)}"
    bounds = [
        f"{words} {show_number(node[name])}"
        for name, words in (
            ("minimum", "of at least"),
            ("exclusiveMinimum", "greater than"),
            ("maximum", "of at most"),
            ("exclusiveMaximum", "less than"),
        )
        if name in node and node[name] != INT32_MAX
    ]
    return " ".join([noun, " and ".join(bounds)]).strip()
