"""Folders of AWQ and GPTQ mean what their publishers' programs compute."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import _unpack_awq_weights

from mlxr.compiler.errors import SpecError, WeightsError
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.weights_digest import weights_digest
from mlxr_tests.family_models import Config, build_model, config_of
from mlxr_tests.family_oracle import EXACT, logits_of, mlx_lm_logits, prompts, relative_error
from mlxr_tests.few import few
from mlxr_tests.split_logits import check_split

TOLERANCE = 5e-6
GROUP = 32
WIDE: Config = config_of("qwen2") | {"hidden_size": 192, "intermediate_size": 256, "num_attention_heads": 6}
SETTINGS: dict[str, Config] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
    "gptq, 8 bits": {"quant_method": "gptq", "bits": 8, "group_size": GROUP, "desc_act": False, "sym": True},
}
Arrays = dict[str, mx.array]


def turned(stem: str, shape: tuple[int, int], settings: Config) -> tuple[Arrays, mx.array]:
    """A matrix as files have it, and the numbers that they mean."""
    chance, bits, (rows, columns) = np.random.default_rng(len(stem)), settings["bits"], shape
    integers = chance.integers(0, 1 << bits, (columns, rows), dtype=np.uint32)
    zeros = chance.integers(0, 1 << bits, (columns // GROUP, rows), dtype=np.uint32)
    scales = (chance.uniform(0.03, 0.3, zeros.shape) / (1 << bits)).astype(np.float16)
    if settings["quant_method"] == "awq":
        words, zero_words = (packed_awq(each) for each in (integers, zeros))
    else:
        ones = packed(np.ones((1, 32 // bits), np.uint32), bits)
        words, zero_words = packed(integers.T, bits).T, packed(zeros, bits) - ones  # as GPTQModel does
    files = {"qweight": words, "qzeros": zero_words, "scales": scales}
    if settings["quant_method"] == "gptq":
        files["g_idx"] = np.arange(columns, dtype=np.int32) // GROUP
    spread = [np.repeat(each.astype(np.float32), GROUP, 0) for each in (zeros, scales)]
    numbers = (integers - spread[0]) * spread[1]
    return {f"{stem}.{name}": mx.array(np.ascontiguousarray(each)) for name, each in files.items()}, mx.array(numbers.T)


def packed(integers: Any, bits: int) -> Any:
    """Words of neighbours in a row, the first one in the lowest bits."""
    places = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    by_word = integers.reshape(len(integers), -1, 32 // bits)
    return np.bitwise_or.reduce(by_word << places, axis=-1).astype(np.uint32).view(np.int32)


def packed_awq(integers: Any) -> Any:
    """The same in AWQ's order, by mlx-lm's own reader of it."""
    order = np.array(_unpack_awq_weights(mx.array([[0x76543210]], mx.uint32)))[0]
    sorted_back = np.argsort(order)
    words = packed(integers.reshape(len(integers), -1, 8)[:, :, sorted_back].reshape(integers.shape), 4)
    assert np.array_equal(np.array(_unpack_awq_weights(mx.array(words.view(np.uint32)))), integers)
    return words


def published(name: str, folder: Path) -> Any:
    """Writes a folder as it is published, and returns mlx-lm's model with the numbers that it means."""
    model, settings = build_model(WIDE), SETTINGS[name]
    files: Arrays = {}
    numbers: Arrays = {}
    for own, array in tree_flatten(model.parameters()):
        if own.endswith("_proj.weight"):
            stored, numbers[own] = turned(own.removesuffix(".weight"), array.shape, settings)
            files |= stored
        else:
            files[own] = array.astype(mx.bfloat16)
            numbers[own] = files[own].astype(mx.float32)
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), files)
    (folder / "config.json").write_text(json.dumps(WIDE | {"quantization_config": settings}))
    model.load_weights(list(numbers.items()))
    return model


ON_HOSTS = [(name, host) for name in SETTINGS for host in ("reference", "cpu", "sim")]


@pytest.mark.parametrize(("name", "host"), few(ON_HOSTS, [case for case in ON_HOSTS if case[1] == "reference"][:2]))
def test_logits_are_those_of_the_numbers(name: str, host: str, tmp_path: Path) -> None:
    model = published(name, tmp_path)
    tokens = prompts(model.args.vocab_size)
    assert relative_error(logits_of(tmp_path, tokens, host), mlx_lm_logits(model, tokens)) < TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS)
def test_two_ranks(name: str, tmp_path: Path) -> None:
    model = published(name, tmp_path)
    tokens = prompts(model.args.vocab_size)
    check_split(tmp_path, tokens, mlx_lm_logits(model, tokens), TOLERANCE)


def test_columns_in_another_order_are_refused(tmp_path: Path) -> None:
    model = published("gptq", tmp_path)
    path = tmp_path / "model.safetensors"
    before, raw = weights_digest(open_weights(path)), bytearray(path.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8:start])["model.layers.1.mlp.up_proj.g_idx"]["data_offsets"]
    raw[start + begin : start + end] = np.frombuffer(raw[start + begin : start + end], "<i4")[::-1].tobytes()
    path.write_bytes(raw)
    assert weights_digest(open_weights(path)) != before
    with pytest.raises(WeightsError, match=r"up_proj\.g_idx' has columns in another order than their groups"):
        logits_of(tmp_path, prompts(model.args.vocab_size), "reference")


def test_biases_that_are_zero(tmp_path: Path) -> None:
    """Qwen's GPTQ folders have a bias for each matrix, those that the model lacks too."""
    model = published("gptq", tmp_path)
    path = tmp_path / "model.safetensors"
    files = dict(mx.load(str(path)))
    for name in [name for name in files if name.endswith(".qweight")]:
        files.setdefault(name.replace("qweight", "bias"), mx.zeros(files[name].shape[1], mx.float16))
    mx.save_safetensors(str(path), files)
    tokens = prompts(model.args.vocab_size)
    assert relative_error(logits_of(tmp_path, tokens, "reference"), mlx_lm_logits(model, tokens)) < TOLERANCE


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS["awq"] | {"version": "gemv"},
        SETTINGS["awq"] | {"zero_point": False},
        SETTINGS["gptq"] | {"desc_act": True},
        SETTINGS["gptq"] | {"checkpoint_format": "gptq_v2"},
        SETTINGS["gptq"] | {"bits": 3},
        SETTINGS["gptq"] | {"dynamic": {"-:mlp": {}}},
    ],
    ids=str,
)
def test_other_forms_are_refused(settings: Config, tmp_path: Path) -> None:
    published("gptq", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization_config": settings}))
    with pytest.raises(SpecError, match=f'quantised by "{settings["quant_method"]}", which is not supported'):
        import_model(tmp_path, EXACT)
