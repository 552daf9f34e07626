"""The bundled model: its files, and variants of its spec."""

from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import ModelSpec
from mlxr.compiler.spec.catalog import find_spec
from mlxr.compiler.spec.load import load_spec

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/data/golden"
TOKENIZER = ROOT / "models/storyteller/tokenizer.model"
Q8_0 = ROOT / "models/storyteller/storyteller-q8_0.gguf"
VALID = ROOT / "tests/data/storyteller/valid.txt"
Q4_K_M = ROOT / "tests/data/storyteller/storyteller-q4_k_m.gguf"
BF16 = ROOT / "tests/data/storyteller/model.safetensors"


def storyteller_spec(**changes: Any) -> ModelSpec:
    """The bundled spec; a section given as a dict is updated with it: `cache={"max_sequences": 3}`."""
    data = load_spec(find_spec("storyteller")).model_dump()
    for section, values in changes.items():
        data[section] = data[section] | values if isinstance(values, dict) else values
    return ModelSpec.model_validate(data)
