"""The JSON schema describes every key, and the same values as the model."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from mlxr.compiler.spec.catalog import bundled_specs
from mlxr.compiler.spec.family import Family
from mlxr.compiler.spec.model import SizeBytes
from mlxr.compiler.spec.schema import SchemaNode, schema_of, spec_schema


def sections(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from schema["$defs"].items()
    yield "ModelSpec", schema


def test_every_key_and_section_has_a_description() -> None:
    for schema in (spec_schema(), schema_of(Family, described=True)):
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
    assert (head_dim["type"], head_dim["minimum"], head_dim["maximum"]) == ("integer", 32, 512)
    assert schema["$defs"]["Cache"]["properties"]["dtype"]["enum"] == ["f32", "f16", "bf16", "q8", "q4", "auto"]
    assert set(schema["$defs"]["Rope"]["properties"]["scaling"]["discriminator"]["mapping"]) == {
        "none",
        "base",
        "linear",
        "llama3",
        "yarn",
        "longrope",
    }


def test_sizes_are_text_or_whole_numbers() -> None:
    size, null = spec_schema()["properties"]["memory_budget"]["anyOf"]
    assert size["type"] == ["integer", "string", "array"]
    assert size["items"]["type"] == ["integer", "string"]
    assert null == {"type": "null"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, 2**29) for text in ("512MiB", "512 mib", "0.5GiB", " 524288.0KiB\t", "536870912", "536870912b")),
        ("1kB", 1000),
        ("1" * 15 + "b", 111_111_111_111_111),
        *((text, None) for text in ("1" * 16, "1." + "0" * 16 + "GB", "1 TiB", "1ib", "1.GiB", ".5GiB", "-1", "1e9")),
        *((text, None) for text in ("", "GiB", "1GiB\n", "1\u00a0GiB", "\u0661GiB", "1 G iB")),
    ],
)
def test_text_that_the_schema_takes_as_a_size_is_what_the_loader_takes(text: str, expected: int | None) -> None:
    size, *_ = spec_schema()["properties"]["memory_budget"]["anyOf"]
    assert (re.search(size["pattern"] + r"\Z", text) is not None) == (expected is not None)
    adapter = TypeAdapter(SizeBytes)
    if expected is None:
        with pytest.raises(ValidationError):
            adapter.validate_python(text)
    else:
        assert adapter.validate_python(text) == expected


def test_head_dim_may_be_left_out() -> None:
    assert spec_schema()["$defs"]["Attention"]["required"] == ["num_heads", "num_kv_heads"]


def test_schema_is_the_same_text_for_any_hash_seed() -> None:
    program = "import json; from mlxr.compiler.spec.schema import spec_schema; print(json.dumps(spec_schema()))"
    texts = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert json.loads(texts[0]) == spec_schema(), "the schema is plain JSON"


def test_keys_of_bundled_specs_are_in_the_schema() -> None:
    def paths(data: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for key, value in data.items():
            yield (*path, key)
            if isinstance(value, dict):
                yield from paths(value, (*path, key))

    schema = spec_schema()
    for file in bundled_specs().values():
        for path in paths(yaml.safe_load(file.read_text(encoding="utf-8"))):
            place = SchemaNode(schema)
            for key in path:
                place = place.variant("llama3").child(key) if place.variants else place.child(key)
            assert place.node != {"type": "unknown"}, (file, path)


def test_layer_types_name_only_what_differs() -> None:
    sections = spec_schema()["$defs"]
    layer = sections["LayerType"]
    keys = {"attention", "rope", "mlp", "recurrent", "blocks"}
    assert "required" not in layer and layer["properties"].keys() == keys
    for key, section in (("attention", "Attention"), ("mlp", "Mlp")):
        changes = sections[layer["properties"][key]["anyOf"][0]["$ref"].rpartition("/")[2]]
        assert "required" not in changes and changes["properties"] == sections[section]["properties"]
