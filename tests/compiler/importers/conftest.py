"""What files of the bundled and the tiny models say, as an importer gets it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.importers.tensors import TensorFact
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.storyteller import BF16

Facts = tuple[dict[str, Any], dict[str, TensorFact]]


def facts_of(path: Path) -> Facts:
    """Metadata and tensors of a weight file."""
    file = open_weights(path)
    tensors = {name: TensorFact(info.shape, info.type) for name, info in file.tensors.items()}
    return dict(file.metadata), tensors


@pytest.fixture
def gguf_facts() -> Callable[[Path], Facts]:
    return facts_of


@pytest.fixture
def storyteller_config() -> Facts:
    """The bundled model's config.json and the tensors beside it."""
    return json.loads(BF16.with_name("config.json").read_text()), facts_of(BF16)[1]
