"""Layers that guess further tokens, behind a model's own: they are counted out, and their tensors left alone."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from mlxr.compiler.errors import WeightsError
from mlxr.loading.compare_spec import check_tensors_first
from mlxr.loading.imported_model import import_model
from mlxr.loading.parts_note import note_of_parts
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.family_models import build_model, config_of, save_folder
from mlxr_tests.family_oracle import EXACT, logits_of, mlx_lm_logits, prompts, relative_error

NUM_LAYERS = 2


def with_tensors(folder: Path, more: dict[str, mx.array]) -> Path:
    """The folder of a model whose file has more tensors."""
    path = folder / "model.safetensors"
    tensors = mx.load(str(path)) | more
    (folder / "model.safetensors.index.json").unlink()
    mx.save_safetensors(str(path), tensors)
    return folder


def test_a_folder(tmp_path: Path) -> None:
    config = config_of("glm4") | {"num_nextn_predict_layers": 1}
    model = build_model(config_of("glm4"))
    folder = save_folder(model, config, tmp_path)
    of_last = f"model.layers.{NUM_LAYERS - 1}."
    layer = {
        name.replace(of_last, f"model.layers.{NUM_LAYERS}."): array
        for name, array in mx.load(str(folder / "model.safetensors")).items()
        if name.startswith(of_last)
    }
    joins = mx.ones((config["hidden_size"], 2 * config["hidden_size"]))
    layer[f"model.layers.{NUM_LAYERS}.eh_proj.weight"] = layer["mtp.layers.0.proj.weight"] = joins
    with_tensors(folder, layer)
    spec, weights = import_model(folder, EXACT)
    assert spec.model.num_layers == NUM_LAYERS
    check_tensors_first(spec, weights)
    note = note_of_parts(open_weights(folder))
    assert note is not None and f"{len(layer)} tensors of layers that guess further tokens (" in note
    tokens = prompts(config["vocab_size"])
    assert relative_error(logits_of(folder, tokens, "reference"), mlx_lm_logits(model, tokens)) < 1e-4


def test_further_layers_that_guess_nothing_are_refused(tmp_path: Path) -> None:
    config = config_of("glm4")
    folder = save_folder(build_model(config), config, tmp_path)
    with_tensors(folder, {f"model.layers.{NUM_LAYERS}.mlp.down_proj.weight": mx.ones((8, 8))})
    spec, weights = import_model(folder, EXACT)
    with pytest.raises(WeightsError, match=rf"no use for: 'model.layers.{NUM_LAYERS}.mlp.down_proj.weight'"):
        check_tensors_first(spec, weights)


def test_lists_that_have_an_entry_for_it(tmp_path: Path) -> None:
    """Such as old folders have."""
    config = config_of("gemma3_text") | {"num_nextn_predict_layers": 1}
    folder = save_folder(build_model(config), config, tmp_path)
    plain = import_model(folder, EXACT)[0].model
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    (folder / "config.json").write_text(json.dumps(config | {"layer_types": kinds}))
    assert import_model(folder, EXACT)[0].model == plain
