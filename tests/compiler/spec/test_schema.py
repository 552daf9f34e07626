"""The JSON schema describes every key, and the same values as the model."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.compiler.spec.names import TensorNames
from mlxr.compiler.spec.schema import Place, schema_of, spec_schema


def sections(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from schema["$defs"].items()
    yield "ModelSpec", schema


def test_every_key_and_section_has_a_description() -> None:
    for schema in (spec_schema(), schema_of(TensorNames)):
        for name, section in sections(schema):
            assert section.get("description"), name
            assert section["additionalProperties"] is False, name
            for key, node in section["properties"].items():
                assert node.get("description"), f"{name}.{key}"


def test_descriptions_come_from_the_docstrings() -> None:
    attention = spec_schema()["$defs"]["Attention"]["properties"]
    assert attention["sliding_window"]["description"].startswith("Tokens a query may see")


def test_bounds_and_choices() -> None:
    schema = spec_schema()
    head_dim = schema["$defs"]["Attention"]["properties"]["head_dim"]
    assert (head_dim["type"], head_dim["minimum"], head_dim["maximum"]) == ("integer", 32, 256)
    assert schema["$defs"]["Cache"]["properties"]["dtype"]["enum"] == ["f32", "f16", "bf16"]
    assert set(schema["$defs"]["Rope"]["properties"]["scaling"]["discriminator"]["mapping"]) == {
        "none",
        "linear",
        "llama3",
    }


def test_sizes_are_text_or_whole_numbers() -> None:
    size, null = spec_schema()["properties"]["memory_budget"]["anyOf"]
    assert size["type"] == ["integer", "string"]
    assert null == {"type": "null"}


def test_head_dim_may_be_left_out() -> None:
    assert spec_schema()["$defs"]["Attention"]["required"] == ["num_heads", "num_kv_heads"]


def test_schema_is_plain_json_and_stable() -> None:
    assert json.dumps(spec_schema()) == json.dumps(json.loads(json.dumps(spec_schema())))
    assert spec_schema() == spec_schema()
    assert spec_schema()["title"] == "MLXR model spec"


def test_keys_of_bundled_specs_are_in_the_schema() -> None:
    def paths(data: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for key, value in data.items():
            yield (*path, key)
            if isinstance(value, dict):
                yield from paths(value, (*path, key))

    known = set(Place(spec_schema()).walk())
    for file in bundled_specs().values():
        assert set(paths(yaml.safe_load(file.read_text(encoding="utf-8")))) <= known
