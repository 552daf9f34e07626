"""The bundled model: its files, and variants of its spec; and a tiny model, a twelfth of its size."""

from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import ModelSpec
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.spec.catalog import find_spec
from mlxr.compiler.spec.load import load_spec
from mlxr.loading.imported_model import import_model

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/data/golden"
TOKENIZER = ROOT / "models/storyteller/tokenizer.model"
Q8_0 = ROOT / "models/storyteller/storyteller-q8_0.gguf"
VALID = ROOT / "tests/data/storyteller/valid.txt"
Q4_K_M = ROOT / "tests/data/storyteller/storyteller-q4_k_m.gguf"
BF16 = ROOT / "tests/data/storyteller/model.safetensors"
PROMPT, ANSWER = "There was once a", " man who had a"
"""Five tokens, and the four that follow on any host, in 16 bits or with activations of 8: each logit is the greatest by
0.3, which is five times what these change. ("Once upon a time" goes on by 0.03.)"""
TINY = GOLDEN / "tiny-Q8_0.gguf"


def storyteller_spec(**changes: Any) -> ModelSpec:
    """The spec of the bundled model in f32, paged; a dict updates its section: `cache={"max_sequences": 3}`.

    Those of three sequences and steps of 16 tokens, whatever their contexts, have one library on host cpu.
    """
    exact = {"weights": {"default": "f32"}, "activation_dtype": "f32", "cache": {"mode": "paged", "dtype": "f32"}}
    return _changed(_changed(load_spec(find_spec("storyteller")), exact | {"prefill_chunk": 256}), changes)


def tiny_spec(**changes: Any) -> ModelSpec:
    """The spec of TINY in f32: two layers, 640 tokens, a context of 512. Changes work as in `storyteller_spec`."""
    imported, _ = import_model(TINY, ImportOptions(activation_dtype="f32", cache_dtype="f32"))
    return _changed(imported, {"weights": {"default": "f32"}, **changes})


def _changed(spec: ModelSpec, changes: dict[str, Any]) -> ModelSpec:
    data = spec.model_dump()
    for section, values in changes.items():
        data[section] = data[section] | values if isinstance(values, dict) else values
    return ModelSpec.model_validate(data)
