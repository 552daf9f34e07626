"""Folders of packed integers with scales (compressed-tensors), Kimi K2.5's among them, mean what mlx-lm says."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxr.compiler.errors import SpecError, WeightsError
from mlxr.loading.imported_model import import_model
from mlxr.loading.parts_note import note_of_parts
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.family_models import Config, build_model, config_of
from mlxr_tests.family_oracle import EXACT, logits_of, mlx_lm_logits, prompts, relative_error
from mlxr_tests.few import few
from mlxr_tests.packed_integers import FORMS, Form, packed
from mlxr_tests.split_logits import check_split

TOLERANCE = 5e-6
KIMI: Config = {
    "model_type": "kimi_k25",
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": config_of("deepseek_v3") | {"model_type": "kimi_k2", "moe_intermediate_size": 64},
    "vision_config": {"vt_hidden_size": 32},
    "tie_word_embeddings": False,
}
"""Its experts alone are packed; what says so is beside the text model's keys."""
WIDE: Config = config_of("qwen2") | {"hidden_size": 256}
"""So that each of two ranks has whole groups."""
FOLDERS: dict[str, tuple[Config, str]] = {
    "as Kimi K2": (KIMI, ".experts."),
    "rows of 8 bits": (WIDE | {"intermediate_size": 160}, "layers."),
    "zeros": (WIDE | {"intermediate_size": 256}, "layers."),
}
"""By the form: the config, and a part of the names of packed matrices."""


def published(name: str, folder: Path) -> Any:
    """Writes a folder as it is published.

    Returns:
        mlx-lm's model with the numbers that the folder means.
    """
    (config, which), form = FOLDERS[name], FORMS[name]
    model = build_model(config)
    files: dict[str, mx.array] = {"vision_tower.patch_embed.pos_emb.weight": mx.ones((4, 8))}
    numbers: dict[str, mx.array] = {}
    for stacked, array in tree_flatten(model.parameters()):
        owner, _, role = stacked.partition(".switch_mlp.")
        own = {f"{owner}.experts.{e}.{role}": array[e] for e in range(len(array))} if role else {stacked: array}
        for tensor, matrix in own.items():
            if matrix.ndim == 2 and which in tensor and tensor.endswith("proj.weight"):
                stored, numbers[tensor] = packed(tensor, np.array(matrix), form)
                files |= stored
            else:
                files[tensor] = numbers[tensor] = matrix
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), files if config is KIMI else _without_images(files))
    if "text_config" in config:
        config = config | {"text_config": config["text_config"] | {"quantization_config": form.settings}}
    else:
        config = config | {"quantization_config": form.settings}
    (folder / "config.json").write_text(json.dumps(config))
    model.load_weights(list((model.sanitize(numbers) if hasattr(model, "sanitize") else numbers).items()))
    return model


def _without_images(files: dict[str, mx.array]) -> dict[str, mx.array]:
    return {name: array for name, array in files.items() if not name.startswith("vision_tower.")}


ON_HOSTS = [(name, host) for name in FOLDERS for host in ("reference", "cpu", "sim")]


@pytest.mark.parametrize(("name", "host"), few(ON_HOSTS, [case for case in ON_HOSTS[::4] if case[1] != "sim"]))
def test_logits_are_those_of_the_numbers(name: str, host: str, tmp_path: Path) -> None:
    model = published(name, tmp_path)
    tokens = prompts(config_of("llama")["vocab_size"])
    assert relative_error(logits_of(tmp_path, tokens, host), mlx_lm_logits(model, tokens)) < TOLERANCE


def test_kimi_s_experts_stay_packed_and_its_images_are_left_alone(tmp_path: Path) -> None:
    published("as Kimi K2", tmp_path)
    weights = import_model(tmp_path, EXACT)[0].weights
    assert str(weights.of_tensor("layers.1.mlp.experts.up")) == "affine4_g32_bf16"
    assert str(weights.of_tensor("layers.1.mlp.shared.up")) == "f32"
    assert "1 tensors for images" in str(note_of_parts(open_weights(tmp_path)))


@pytest.mark.long
@pytest.mark.parametrize("name", FOLDERS)
def test_two_ranks(name: str, tmp_path: Path) -> None:
    model = published(name, tmp_path)
    tokens = prompts(config_of("llama")["vocab_size"])
    check_split(tmp_path, tokens, mlx_lm_logits(model, tokens), TOLERANCE)


def with_weights(form: Form, **changes: Any) -> Config:
    return form.settings | {"config_groups": {"group_0": {"weights": form.weights | changes}}}


@pytest.mark.parametrize(
    "settings",
    [
        with_weights(FORMS["zeros"], actorder="group"),
        with_weights(FORMS["zeros"], strategy="tensor"),
        with_weights(FORMS["zeros"], num_bits=7),
        with_weights(FORMS["zeros"], type="float"),
        with_weights(FORMS["zeros"], dynamic=True),
        FORMS["zeros"].settings | {"transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}},
        FORMS["zeros"].settings | {"format": "int-quantized"},
    ],
    ids=["order", "one scale", "7 bits", "floats", "dynamic", "transforms", "not packed"],
)
def test_what_is_not_read_is_refused_by_name(settings: Config, tmp_path: Path) -> None:
    published("zeros", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError, match='quantised by "compressed-tensors", which is not supported'):
        import_model(tmp_path, EXACT)


def test_settings_that_contradict_the_tensors(tmp_path: Path) -> None:
    published("zeros", tmp_path)
    for settings in (FORMS["as Kimi K2"].settings, FORMS["rows of 8 bits"].settings):
        config = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": settings}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(SpecError, match="no quantisation that is supported"):
            import_model(tmp_path, EXACT)


@pytest.mark.parametrize("tensor", ["packed", "scale", "zero_point"])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (2, 2, 2)], ids=str)
def test_hostile_shapes(tensor: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    published("zeros", tmp_path)
    path = tmp_path / "model.safetensors"
    held = mx.load(str(path))
    name = f"model.layers.0.mlp.down_proj.weight_{tensor}"
    mx.save_safetensors(str(path), held | {name: mx.zeros(shape, held[name].dtype)})
    with pytest.raises((SpecError, WeightsError), match=r"down_proj\.weight"):
        logits_of(tmp_path, prompts(61), "reference")
