"""Folders whose weights are floats of 8 or 4 bits with scales, as DeepSeek, MiniMax, Qwen and others publish them."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from mlxr.compiler.errors import MlxrError, SpecError, WeightsError
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.weights_digest import weights_digest
from mlxr_tests.family_models import Config, build_model, config_of
from mlxr_tests.family_oracle import EXACT, logits_of, mlx_lm_logits, prompts, relative_error
from mlxr_tests.few import few
from mlxr_tests.split_logits import check_split

TOLERANCE = 5e-6
KEPT = ("embed", "lm_head", "norm", "block_sparse_moe.gate", "bias")
"""What published folders leave in bf16."""
WIDE: Config = {"hidden_size": 192, "intermediate_size": 168, "num_attention_heads": 6, "num_key_value_heads": 2}
"""Matrices of more than one tile, with tiles that are cut."""
Arrays = dict[str, mx.array]


class Form(NamedTuple):
    """How a folder says what its numbers are multiplied by."""

    case: str
    tile: tuple[int, int]
    ending: str
    settings: Config


ROWS: Config = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}, "targets": ["Linear"]}
FORMS = {
    "tiles": Form("minimax_m2", (128, 128), "_scale_inv", {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "rows": Form(
        "qwen2",
        (1, 4096),
        "_scale",
        {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": ROWS}},
    ),
    "one": Form("phi3, partial", (4096, 4096), "_scale_inv", {"quant_method": "fp8", "activation_scheme": "static"}),
}


FOUR: Config = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
FLOATS_OF_4 = {
    "packed": Form(
        "minimax_m2",
        (1, 16),
        "_packed",
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": {"weights": FOUR, "input_activations": FOUR | {"dynamic": "local"}}},
        },
    ),
    "modelopt": Form(
        "qwen2",
        (1, 16),
        "",
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.0.self_attn*"]},
    ),
}
"""NVFP4 of llm-compressor, whose scales are divided by one, and NVIDIA's, whose scales are multiplied."""
FORMS |= FLOATS_OF_4
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def four_bits(name: str, matrix: mx.array, form: Form) -> tuple[Arrays, mx.array]:
    """A matrix as files have it, and the numbers that they mean, which bf16 holds: its own scale is a power of 2."""
    chance, (rows, columns) = np.random.default_rng(matrix.shape[1]), matrix.shape
    codes = chance.integers(0, 16, (rows, columns), dtype=np.uint8)
    scales = mx.to_fp8(mx.array(chance.uniform(1, 40, (rows, columns // 16)).astype(np.float32)))
    whole, is_packed, stem = 2.0**-11, form.ending == "_packed", name.removesuffix(".weight")
    files = {
        f"{name}{form.ending}": mx.array(codes[:, ::2] | codes[:, 1::2] << 4),
        f"{name}_scale": scales,
        f"{name}_global_scale" if is_packed else f"{name}_scale_2": mx.array([1 / whole if is_packed else whole]),
        f"{stem}.input_global_scale" if is_packed else f"{stem}.input_scale": mx.array([0.5]),
    }
    spread = np.repeat(np.array(mx.from_fp8(scales, dtype=mx.float32)), 16, 1)
    return files, mx.array(FP4[codes] * spread * np.float32(whole))


def eight_bits(name: str, matrix: mx.array, form: Form) -> tuple[Arrays, mx.array]:
    """A matrix as files have it, and the numbers that they mean, which bf16 holds: scales are powers of 2."""
    (tall, wide), (rows, columns) = form.tile, matrix.shape
    scales = 2.0 ** np.random.default_rng(rows).integers(-9, -6, (-(-rows // tall), -(-columns // wide)))
    spread = mx.array(np.repeat(np.repeat(scales, tall, 0)[:rows], wide, 1)[:, :columns].astype(np.float32))
    codes = mx.to_fp8(matrix / spread)
    stored = mx.array(scales.astype(np.float32)) if scales.size > 1 else mx.array(float(scales[0, 0]))
    files = {name: codes, name + form.ending: stored}
    if form.settings.get("activation_scheme") == "static":
        files[name.replace("weight", "activation_scale")] = mx.array(0.5)
    return files, mx.from_fp8(codes, dtype=mx.float32) * spread


def published(form: Form, folder: Path, left_out: tuple[str, ...] = ()) -> Any:
    """Writes a folder as it is published.

    Returns:
        mlx-lm's model with the numbers that the folder means.
    """
    config = config_of(form.case)
    config |= {key: value for key, value in WIDE.items() if key in config}
    config |= {"intermediate_size": 160} if form in FLOATS_OF_4.values() else {}
    model = build_model(config)
    tensors: Arrays = {}
    numbers: Arrays = {}
    ignored = [name.removesuffix("*") for name in form.settings.get("ignore", ())]
    for name, array in tree_flatten(model.parameters()):
        stem, _, part = name.removesuffix(".weight").partition(".switch_mlp.")
        old = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}.get(part)
        named = {f"{stem}.experts.{e}.{old}.weight": array[e] for e in range(len(array))} if part else {name: array}
        for own, matrix in named.items():
            if own.endswith("_proj.weight") and form.case == "qwen2":  # of a cache of 8 bits
                tensors[own.replace("weight", "k_scale")] = mx.array(0.5)
            if matrix.ndim < 2 or any(kept in own for kept in (*KEPT, *ignored)):
                tensors[own] = matrix.astype(mx.bfloat16)
                numbers[own] = tensors[own].astype(mx.float32)
            else:
                quantised = four_bits if form in FLOATS_OF_4.values() else eight_bits
                files, numbers[own] = quantised(own, matrix, form)
                tensors |= files
    save(folder, {name: array for name, array in tensors.items() if not name.endswith(left_out)})
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": form.settings}))
    numbers = model.sanitize(numbers) if hasattr(model, "sanitize") else numbers
    model.load_weights(list(numbers.items()))
    return model


def save(folder: Path, tensors: Arrays) -> None:
    """Saves tensors; bytes become F8_E4M3, for which MLX has no type, but for pairs of numbers."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.safetensors"
    mx.save_safetensors(str(path), tensors)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        is_pairs = name.endswith("_packed") or name.removesuffix("weight") + "input_scale" in header
        if entry["dtype"] == "U8" and not is_pairs:
            entry["dtype"] = "F8_E4M3"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])


ON_HOSTS = [(form, host) for form in FORMS for host in ("reference", "cpu", "sim")]


SHORT = [*(case for case in ON_HOSTS[::4] if case[1] != "sim"), ("packed", "reference")]


@pytest.mark.parametrize(("form", "host"), few(ON_HOSTS, SHORT))
def test_logits_are_those_of_the_numbers(form: str, host: str, tmp_path: Path) -> None:
    model = published(FORMS[form], tmp_path)
    tokens = prompts(model.args.vocab_size)
    assert relative_error(logits_of(tmp_path, tokens, host), mlx_lm_logits(model, tokens)) < TOLERANCE


def test_mlx_lm_reads_the_same_numbers(tmp_path: Path) -> None:
    model = published(FORMS["tiles"], tmp_path)
    tokens = prompts(model.args.vocab_size)
    theirs, _ = load_model(tmp_path)
    theirs.set_dtype(mx.float32)
    assert relative_error(mlx_lm_logits(theirs, tokens), mlx_lm_logits(model, tokens)) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_two_ranks(form: str, tmp_path: Path) -> None:
    model = published(FORMS[form], tmp_path)
    tokens = prompts(model.args.vocab_size)
    check_split(tmp_path, tokens, mlx_lm_logits(model, tokens), TOLERANCE)


MODES = {"mxfp8": (8, 32), "nvfp4": (4, 16)}
"""Bits and columns that share a scale."""


def quantised_by_mlx(mode: str, case: str, folder: Path) -> Any:
    """Writes a folder of mlx-lm's, and returns its model."""
    config = config_of(case)
    config |= {key: value for key, value in WIDE.items() if key in config} | {"intermediate_size": 160}
    model = build_model(config)
    rounded = {name: array.astype(mx.bfloat16) for name, array in tree_flatten(model.parameters()) if "bias" in name}
    model.load_weights([(name, array.astype(mx.float32)) for name, array in rounded.items()], strict=False)
    bits, group = MODES[mode]
    nn.quantize(model, group, bits, mode=mode)
    tensors = dict(tree_flatten(model.parameters()))
    assert {array.dtype for name, array in tensors.items() if name.endswith("_proj.scales")} == {mx.uint8}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    settings = {"bits": bits, "group_size": group, "mode": mode}
    (folder / "config.json").write_text(json.dumps(config | {"quantization": settings}))
    return model


BY_MLX = [(mode, case, host) for mode in MODES for case in ("qwen2", "minimax_m2") for host in ("cpu", "reference")]


@pytest.mark.parametrize(("mode", "case", "host"), few(BY_MLX, [BY_MLX[1], BY_MLX[7]]))
def test_modes_of_mlx_lm(mode: str, case: str, host: str, tmp_path: Path) -> None:
    """A product of so few bits is a number of bf16: nothing is lost."""
    model = quantised_by_mlx(mode, case, tmp_path)
    tokens = prompts(model.args.vocab_size)
    assert relative_error(logits_of(tmp_path, tokens, host), mlx_lm_logits(model, tokens)) < TOLERANCE


def test_mxfp4_of_llm_compressor(tmp_path: Path) -> None:
    """Its bytes are those of mlx-lm's mode, under other names."""
    config = config_of("qwen2") | {"hidden_size": 192, "intermediate_size": 160}
    model = build_model(config)
    nn.quantize(model, 32, 4, mode="mxfp4", class_predicate=lambda path, _: path.endswith("mlp.up_proj"))
    files: Arrays = {}
    for name, array in tree_flatten(model.parameters()):
        stem = name.removesuffix(".scales").removesuffix(".weight")
        if not stem.endswith("mlp.up_proj"):
            files[name] = array
        elif name.endswith("scales"):
            files[f"{stem}.weight_scale"] = array
        else:
            files[f"{stem}.weight_packed"] = array.view(mx.uint8)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), files)
    groups = {"group_0": {"weights": FOUR | {"group_size": 32, "strategy": "group"}}}
    settings = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": groups}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    assert import_model(tmp_path, EXACT)[0].weights.of_tensor("layers.0.mlp.up") == "mxfp4_mlx"
    tokens = prompts(model.args.vocab_size)
    assert relative_error(logits_of(tmp_path, tokens, "reference"), mlx_lm_logits(model, tokens)) < TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_of_modes_of_mlx_lm(mode: str, tmp_path: Path) -> None:
    model = quantised_by_mlx(mode, "qwen2", tmp_path)
    tokens = prompts(model.args.vocab_size)
    check_split(tmp_path, tokens, mlx_lm_logits(model, tokens), TOLERANCE)


def test_a_scale_of_scales_is_a_part_of_the_digest(tmp_path: Path) -> None:
    published(FORMS["modelopt"], tmp_path)
    path = tmp_path / "model.safetensors"
    before, raw = weights_digest(open_weights(path)), bytearray(path.read_bytes())
    size = 8 + int.from_bytes(raw[:8], "little")
    place = next(entry for name, entry in json.loads(raw[8:size]).items() if name.endswith("weight_scale_2"))
    raw[size + place["data_offsets"][0]] ^= 1
    path.write_bytes(raw)
    assert weights_digest(open_weights(path)) != before


@pytest.mark.parametrize(("form", "message"), [("packed", r"pack-quantized"), ("modelopt", r"is of type 'U8'")])
def test_a_scale_of_scales_is_missing(form: str, message: str, tmp_path: Path) -> None:
    """Numbers without it would be some thousand times too large."""
    published(FORMS[form], tmp_path, left_out=("weight_scale_2", "weight_global_scale"))
    with pytest.raises(MlxrError, match=message):
        import_model(tmp_path, EXACT)


def test_rows_that_lie_in_pieces(tmp_path: Path) -> None:
    """Elsewhere the last two dimensions may be a row together; scales say nothing then of what belongs to them."""
    published(FORMS["rows"], tmp_path)
    path = tmp_path / "model.safetensors"
    raw = path.read_bytes()
    size = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:size])
    header["model.layers.0.self_attn.o_proj.weight"]["shape"] = [192, 96, 2]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[size:])
    with pytest.raises(WeightsError, match=r"numbers \[192, 96, 2\] F8_E4M3 and scales \[192, 1\]"):
        logits_of(tmp_path, [[1, 2, 3]], "reference")


def test_scales_that_do_not_fit(tmp_path: Path) -> None:
    model = published(FORMS["rows"]._replace(tile=(24, 24)), tmp_path)
    with pytest.raises(WeightsError, match=r"numbers \[.*\] F8_E4M3 and scales \[8, 8\] F32: no tiles of rows"):
        logits_of(tmp_path, prompts(model.args.vocab_size), "reference")


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
        },
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {"group_0": {"weights": FOUR | {"group_size": 32}}},
        },
        {"quant_method": "compressed-tensors", "format": "float-quantized", "transform_config": {"config_groups": {}}},
        {
            "quant_method": "compressed-tensors",
            "format": "mixed-precision",
            "config_groups": {"group_0": ROWS | {"format": "int-quantized"}},
        },
        {"quant_method": "fp8", "fmt": "e5m2fnuz"},
        {"quant_method": "fp8", "weight_block_size": [96, 128]},
    ],
)
def test_other_methods_are_refused_by_name(settings: Config, tmp_path: Path) -> None:
    published(FORMS["one"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError, match=f'quantised by "{settings["quant_method"]}", which is not supported'):
        import_model(tmp_path, EXACT)
