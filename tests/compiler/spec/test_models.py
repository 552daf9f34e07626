"""The bundled specs are the published models, and the catalog finds them."""

import json
from pathlib import Path

import pytest

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.spec.catalog import bundled_specs, find_spec
from mlxr.compiler.spec.load import dump_spec, load_spec, parse_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.imported_model import import_model
from mlxr_tests.storyteller import Q8_0

# Parameters of the published checkpoints.
PARAMETERS = {
    "storyteller": 17_832_448,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
}


def count_parameters(spec: ModelSpec) -> int:
    m, a = spec.model, spec.model.attention
    attention = m.hidden_size * a.head_dim * (2 * a.num_heads + 2 * a.num_kv_heads)
    layer = attention + 3 * m.hidden_size * m.mlp.intermediate_size + 2 * m.hidden_size
    tables = m.vocab_size * m.hidden_size * (1 if m.tie_embeddings else 2)
    return tables + m.num_layers * layer + m.hidden_size


def test_bundled_names() -> None:
    assert list(bundled_specs()) == sorted(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_bundled_spec(name: str) -> None:
    spec = load_spec(find_spec(name))
    assert spec.name == name
    assert count_parameters(spec) == PARAMETERS[name]
    assert parse_spec(dump_spec(spec)) == spec
    assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3.1-8b", "mistral-7b"])
def test_budget_holds_weights_and_arena(name: str) -> None:
    spec = load_spec(find_spec(name))
    assert spec.memory_budget is not None
    a = spec.model.attention
    token_bytes = 2 * spec.model.num_layers * a.num_kv_heads * a.head_dim * 2
    arena = spec.cache.max_sequences * spec.model.context * token_bytes
    assert 2 * count_parameters(spec) + arena < 0.97 * spec.memory_budget


def test_properties_that_counts_do_not_show() -> None:
    llama1, llama8 = load_spec(find_spec("llama-3.2-1b")), load_spec(find_spec("llama-3.1-8b"))
    for spec, factor in ((llama1, 32.0), (llama8, 8.0)):
        assert spec.model.rope.theta == 500000.0
        assert spec.model.rope.scaling.model_dump() == {
            "kind": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_context": 8192,
        }
    assert (llama1.model.tie_embeddings, llama8.model.tie_embeddings) == (True, False)
    mistral = load_spec(find_spec("mistral-7b")).model
    assert (mistral.attention.sliding_window, mistral.rope.theta) == (4096, 10000.0)
    ratios = {name: load_spec(path).model.attention.gqa_ratio for name, path in bundled_specs().items()}
    assert ratios == {"storyteller": 4, "tinyllama-1.1b": 8, "llama-3.2-1b": 4, "llama-3.1-8b": 4, "mistral-7b": 4}


def test_storyteller_is_what_its_file_says() -> None:
    """So that the bundled name runs as fast as the file."""
    spec = load_spec(find_spec("storyteller"))
    imported, _ = import_model(Q8_0, ImportOptions())
    assert spec == imported.model_copy(update={"name": "storyteller"})
    assert spec.weights.default == "q8_0"


def test_find_spec_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "storyteller"
    path.write_text(json.dumps({"name": "other"}))
    monkeypatch.chdir(tmp_path)
    assert find_spec("storyteller") == bundled_specs()["storyteller"]
    assert find_spec("./storyteller") == Path("storyteller")
    assert find_spec(path) == path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("storyteler", r'(?s)bundled are llama-3.1-8b, .*did you mean "storyteller"'),
        ("models/llama-3.2-1.yaml", r'(?s)no such file.*did you mean "llama-3.2-1b"'),
        ("qqq", "no bundled model of that name; bundled are"),
        ("/", "is a folder"),
        ("a\0b", "cannot be read|no such file"),
        ("x" * 5000, "cannot be read|no such file"),
    ],
)
def test_find_spec_refuses(name: str, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        find_spec(name)
