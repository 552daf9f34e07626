"""Sharded safetensors models: the same tensors as the single file, and every disagreement with the index."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights import open_weights

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
MAP = {"a": FIRST, "b": SECOND, "c": SECOND}


@pytest.fixture
def index(tmp_path):
    values = {name: np.full((2, i + 1), i, np.float32) for i, name in enumerate("abc")}
    save_file({"a": values["a"]}, tmp_path / FIRST)
    save_file({"b": values["b"], "c": values["c"]}, tmp_path / SECOND)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": MAP}))
    return path


def test_tensors_of_all_shards(index):
    for path in (index, index.parent):
        file = open_weights(path)
        assert set(file.tensors) == {"a", "b", "c"}
        np.testing.assert_array_equal(file.read("c"), np.full((2, 3), 2, np.float32))
        assert file.tensors["c"].file.name == SECOND


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/etc/x.safetensors", "d/x.safetensors", "d\\x.safetensors", "C:x.safetensors", ".."]
)
def test_a_shard_elsewhere_is_refused(index, shard):
    index.write_text(json.dumps({"weight_map": MAP | {"a": shard}}))
    with pytest.raises(WeightsError, match=r"refuses the shard name .*name of a \.safetensors file beside"):
        open_weights(index)


def test_a_name_with_two_shards_is_refused(index):
    """JSON readers take the last one, and nobody would know which was meant; twice the same is no question."""
    text = json.dumps({"weight_map": MAP})
    index.write_text(text.replace('"a"', f'"a": "{FIRST}", "a"', 1))
    assert set(open_weights(index).tensors) == {"a", "b", "c"}
    index.write_text(text.replace('"a"', f'"a": "{SECOND}", "a"', 1))
    with pytest.raises(WeightsError, match=r"the name 'a' occurs twice, with different values"):
        open_weights(index)


def test_a_pickled_shard_is_refused(index):
    index.write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    with pytest.raises(WeightsError, match=r"refuses the shard name 'pytorch_model\.bin'"):
        open_weights(index)


def test_missing_shard(index):
    (index.parent / SECOND).unlink()
    with pytest.raises(WeightsError, match=f"the shard '{SECOND}' is missing, which holds 2 tensors; download it"):
        open_weights(index)


@pytest.mark.parametrize("name", ["x" * 5000, "\ud800"])
def test_a_shard_whose_name_no_file_can_have(index, name):
    index.write_text(json.dumps({"weight_map": {"a": f"{name}.safetensors"}}))
    with pytest.raises(WeightsError, match=r"the shard '.* (cannot be read: |is missing)") as caught:
        open_weights(index)
    assert len(str(caught.value)) < 500


def test_corrupt_shard(index):
    shard = index.parent / SECOND
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=f"{SECOND}: corrupt safetensors header: .* truncated"):
        open_weights(index)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (MAP | {"d": FIRST}, f"tensor 'd' is not in its shard '{FIRST}'"),
        (MAP | {"b": FIRST}, f"{SECOND}: holds tensor 'b', which .* says is to be in '{FIRST}'"),
        ({"a": FIRST, "c": SECOND}, f"{SECOND}: holds tensor 'b', which .* says is nowhere"),
    ],
)
def test_index_and_shards_disagree(index, weight_map, message):
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WeightsError, match=message):
        open_weights(index)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[]", "no `weight_map`"),
        ("{}", "no `weight_map`"),
        ('{"weight_map": ["a"]}', "no `weight_map`"),
        ('{"weight_map": {"a": 1}}', "no `weight_map`"),
    ],
)
def test_malformed_index(index, text, message):
    index.write_text(text)
    with pytest.raises(WeightsError, match=message):
        open_weights(index)
