"""Weights that say another number than the spec are refused, by that number."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights import open_weights
from mlxr.runtime.weights.check_metadata import check_metadata
from mlxr_tests.storyteller import BF16, GOLDEN, Q8_0, storyteller_spec

SPEC = storyteller_spec()
CONFIG = json.loads(BF16.with_name("config.json").read_text())


@pytest.mark.parametrize("path", [Q8_0, BF16, BF16.parent], ids=["gguf", "safetensors", "folder"])
def test_the_bundled_weights_are_those_of_the_spec(path: Path) -> None:
    check_metadata(open_weights(path), SPEC)


@pytest.mark.parametrize("path", [Q8_0, BF16], ids=["gguf", "safetensors"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope": {"theta": 500000.0}}, "rope.theta is 10000, the spec says 500000"),
        ({"norm": {"kind": "rms", "eps": 1e-6}}, "norm.eps is 1e-05, the spec says 1e-06"),
        (
            {"attention": {"num_heads": 16, "num_kv_heads": 4, "head_dim": 32}},
            "attention.num_heads is 8, the spec says 16; attention.num_kv_heads is 2, the spec says 4",
        ),
    ],
)
def test_another_number_is_refused(path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightsError, match="weights of another model, or the spec is wrong") as error:
        check_metadata(open_weights(path), storyteller_spec(model=change))
    assert message in str(error.value)


def test_another_model_is_refused_with_all_that_differs() -> None:
    with pytest.raises(WeightsError, match=r"tiny-Q8_0\.gguf.*num_heads is 4, the spec says 8"):
        check_metadata(open_weights(GOLDEN / "tiny-Q8_0.gguf"), SPEC)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (json.dumps(CONFIG | {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}), "rope.theta is 500000"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        (" " * (1 << 20) + "{}", "larger than"),
    ],
)
def test_config_json_is_a_strangers_file(tmp_path: Path, config: str, message: str) -> None:
    shutil.copy(BF16, tmp_path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(WeightsError, match=message):
        check_metadata(open_weights(tmp_path / BF16.name), SPEC)


@pytest.mark.parametrize("config", ["[]", "{}", json.dumps(CONFIG | {"rope_theta": "much", "head_dim": True}), None])
def test_what_is_not_said_is_not_checked(tmp_path: Path, config: str | None) -> None:
    shutil.copy(BF16, tmp_path)
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    check_metadata(open_weights(tmp_path), SPEC)
