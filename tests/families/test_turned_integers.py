"""Folders of AWQ and GPTQ mean what their publishers' programs compute."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import _unpack_awq_weights

from mlxr.compiler.artifact import Recipe, TensorSource, WeightFormat
from mlxr.compiler.artifact.weight_plan import Columns, Rows
from mlxr.compiler.errors import SpecError, WeightsError
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
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
    "gptq, 3 bits": {"quant_method": "gptq", "bits": 3, "group_size": GROUP, "desc_act": False, "sym": False},
    "gptq, desc_act": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False},
    "gptq, rows": {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": True, "sym": False},
    "gptq, 3 bits, desc_act": {"quant_method": "gptq", "bits": 3, "group_size": 80, "desc_act": True, "sym": True},
    "gptq, 2 bits": {"quant_method": "gptq", "bits": 2, "group_size": 64, "desc_act": False, "sym": True},
    "gptq, 8 bits": {"quant_method": "gptq", "bits": 8, "group_size": GROUP, "desc_act": False, "sym": True},
}
Arrays = dict[str, mx.array]


def turned(stem: str, shape: tuple[int, int], settings: Config) -> tuple[Arrays, mx.array]:
    """A matrix as files have it, and the numbers that they mean."""
    chance, bits, (rows, columns) = np.random.default_rng(len(stem)), settings["bits"], shape
    group = columns if settings["group_size"] == -1 else settings["group_size"]
    integers = chance.integers(0, 1 << bits, (columns, rows), dtype=np.uint32)
    zeros = chance.integers(0, 1 << bits, (-(-columns // group), rows), dtype=np.uint32)
    scales = (chance.uniform(0.03, 0.3, zeros.shape) / (1 << bits)).astype(np.float16)
    order = np.arange(columns, dtype=np.int32) // group
    if settings.get("desc_act"):
        chance.shuffle(order)
    if settings["quant_method"] == "awq":
        words, zero_words = (packed_awq(each) for each in (integers, zeros))
    else:
        words, zero_words = packed(integers.T, bits).T, packed(zeros, bits)
        # As GPTQModel does.
        zero_words = zero_words - ONES[bits] if bits in ONES else packed(zeros - 1 & 7, bits)
    files = {"qweight": words, "qzeros": zero_words, "scales": scales}
    if settings["quant_method"] == "gptq":
        files["g_idx"] = order
    numbers = (integers - zeros.astype(np.float32)[order]) * scales.astype(np.float32)[order]
    if not np.array_equal(order, np.sort(order)) or columns % group:
        numbers = numbers.astype(np.float16).astype(np.float32)
    return {f"{stem}.{name}": mx.array(np.ascontiguousarray(each)) for name, each in files.items()}, mx.array(numbers.T)


ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}


def packed(integers: Any, bits: int) -> Any:
    """Words of neighbours in a row, the first one in the lowest bits."""
    stream = (integers[..., None] >> np.arange(bits, dtype=np.uint32) & 1).reshape(len(integers), -1)
    return np.packbits(stream.astype(np.uint8), axis=1, bitorder="little").view(np.int32)


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


@pytest.mark.parametrize(("name", "host"), few(ON_HOSTS, [case for case in ON_HOSTS if case[1] == "reference"][:-2]))
def test_logits_are_those_of_the_numbers(name: str, host: str, tmp_path: Path) -> None:
    model = published(name, tmp_path)
    tokens = prompts(model.args.vocab_size)
    assert relative_error(logits_of(tmp_path, tokens, host), mlx_lm_logits(model, tokens)) < TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in ("gptq, rows", "gptq, 2 bits")])
def test_two_ranks(name: str, tmp_path: Path) -> None:
    """Of groups of 32 columns: both KV heads have longer ones in common."""
    model = published(name, tmp_path)
    tokens = prompts(model.args.vocab_size)
    check_split(tmp_path, tokens, mlx_lm_logits(model, tokens), TOLERANCE)


@pytest.mark.parametrize("name", ["awq", "gptq, 3 bits", "gptq, desc_act", "gptq, rows"])
def test_some_rows_and_columns(name: str, tmp_path: Path) -> None:
    """In another order, and from the middle of the file's groups, as a rank reads them."""
    files, numbers = turned("x", (96, 256), SETTINGS[name])
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), files)
    file = open_weights(path)
    recipe = Recipe("x.weight", rows=Rows(1, (2, 4), (1, 2)), columns=Columns(128, 256))
    some = open_tensor(MappedWeights(file), TensorSource("x", (8, 128), (recipe,), (recipe,), WeightFormat.F32))
    wanted = np.array(numbers)[[1, 3, 5, 7, 2, 4, 6, 8], 128:]
    assert np.allclose(some.numbers(0, 8), wanted, rtol=1e-6, atol=1e-6)
    assert np.array_equal(some.numbers(3, 6), some.numbers(0, 8)[3:6])


def test_groups_of_columns_are_a_part_of_the_digest(tmp_path: Path) -> None:
    published("gptq, desc_act", tmp_path)
    path = tmp_path / "model.safetensors"
    before, raw = weights_digest(open_weights(path)), bytearray(path.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8:start])["model.layers.1.mlp.up_proj.g_idx"]["data_offsets"]
    order = np.frombuffer(raw[start + begin : start + end], "<i4")
    raw[start + begin : start + end] = order[::-1].tobytes()
    path.write_bytes(raw)
    assert weights_digest(open_weights(path)) != before
    raw[start + begin : start + end] = (order - 1).tobytes()
    path.write_bytes(raw)
    with pytest.raises(WeightsError, match=r"lacks .* 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        logits_of(tmp_path, [[1, 2, 3]], "reference")


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
        SETTINGS["gptq"] | {"checkpoint_format": "gptq_v2"},
        SETTINGS["gptq"] | {"bits": 5},
        SETTINGS["gptq"] | {"dynamic": {"-:mlp": {}}},
    ],
    ids=str,
)
def test_other_forms_are_refused(settings: Config, tmp_path: Path) -> None:
    published("gptq", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(WIDE | {"quantization_config": settings}))
    with pytest.raises(SpecError, match=f'quantised by "{settings["quant_method"]}", which is not supported'):
        import_model(tmp_path, EXACT)
