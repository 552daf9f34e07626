"""Folders as transformers saves them, where it lays tensors out in its own way and mlx-lm does not keep that."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import SpecError, WeightsError
from mlxr.compiler.parallel.tensor_slice import slice_source
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests import config_effects
from mlxr_tests.family_models import build_model, config_of, save_folder
from mlxr_tests.family_oracle import EXACT, logits_of, mlx_lm_logits, prompts, relative_error
from mlxr_tests.few import few
from mlxr_tests.split_logits import check_split

EXPERTS = "model.layers.{}.mlp.experts."


def as_transformers(folder: Path) -> dict[str, mx.array]:
    """gpt-oss in bf16: `x @ W`, so [experts, in, out], with the columns of gate and up by turns; see GptOssExperts."""
    path = folder / "model.safetensors"
    tensors = {name: array.astype(mx.bfloat16) for name, array in mx.load(str(path)).items()}
    for name in [name for name in tensors if ".mlp.experts.gate_proj." in name]:
        gate, up = tensors.pop(name), tensors.pop(name.replace("gate_proj", "up_proj"))
        joined = mx.stack([gate, up], axis=2).reshape(gate.shape[0], -1, *gate.shape[2:])
        stem, _, part = name.replace("gate_proj", "gate_up_proj").rpartition(".")
        tensors[stem if part == "weight" else f"{stem}_bias"] = joined.swapaxes(1, 2) if part == "weight" else joined
    for name in [name for name in tensors if ".mlp.experts.down_proj." in name]:
        stem, _, part = name.rpartition(".")
        array = tensors.pop(name)
        tensors[stem if part == "weight" else f"{stem}_bias"] = array.swapaxes(1, 2) if part == "weight" else array
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    mx.save_safetensors(str(path), {name: mx.contiguous(array) for name, array in tensors.items()})
    return tensors


def as_baichuan(folder: Path, **changes: Any) -> Any:
    """Writes a folder of Baichuan; returns mlx-lm's model with its numbers."""
    config = config_of("llama, linear scaling") | {
        "num_key_value_heads": 4,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        **changes,
    }
    model = build_model(config)
    path = save_folder(model, config, folder) / "model.safetensors"
    tensors = mx.load(str(path))
    for name in [name for name in tensors if "q_proj" in name]:
        parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[name.replace("q_proj", "W_pack")] = mx.concatenate(parts)
    mx.save_safetensors(str(path), tensors)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    config |= {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"]}
    del config["num_key_value_heads"]
    (folder / "config.json").write_text(json.dumps(config))
    return model


def test_baichuan_is_llama_with_joined_projections(tmp_path: Path) -> None:
    model = as_baichuan(tmp_path)
    tokens = prompts(model.args.vocab_size)
    assert relative_error(logits_of(tmp_path, tokens, "reference"), mlx_lm_logits(model, tokens)) < 5e-6


@pytest.mark.parametrize("host", few(["reference", "cpu", "sim"], ["cpu"]))
def test_baichuan_13b_has_biases_by_distance(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of rotations, with the slopes that its own code gives six heads."""
    model = as_baichuan(tmp_path, hidden_size=192, num_attention_heads=6, num_key_value_heads=6)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["max_position_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_max_length": 64}))
    slopes = mx.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])[:, None, None]
    for layer in model.layers:
        layer.self_attn.rope = lambda x, offset=0: x

    def mask(x: mx.array, *_: object) -> mx.array:
        distance = mx.arange(x.shape[1])[:, None] - mx.arange(x.shape[1])
        return mx.where(distance >= 0, -slopes * distance, -mx.inf)

    monkeypatch.setattr("mlx_lm.models.llama.create_attention_mask", mask)
    tokens = prompts(model.args.vocab_size)
    assert relative_error(logits_of(tmp_path, tokens, host), mlx_lm_logits(model, tokens)) < 5e-6


ON_HOSTS = [(host, bits) for host in ("reference", "cpu", "sim") for bits in (None, 8)]


@pytest.mark.parametrize(("host", "bits"), few(ON_HOSTS, [("reference", None)]))
def test_baichuan_2_s_output_has_rows_of_length_1(host: str, bits: int | None, tmp_path: Path) -> None:
    """As its own code has it (NormHead); the vocabulary tells that it is Baichuan 2."""
    model = as_baichuan(tmp_path, vocab_size=125696)
    path = tmp_path / "model.safetensors"
    tensors = mx.load(str(path))
    head = tensors["lm_head.weight"]
    if bits:
        planes = mx.quantize(tensors.pop("lm_head.weight"), 64, bits)
        head = mx.dequantize(*planes, 64, bits)
        names = ("lm_head.weight", "lm_head.scales", "lm_head.biases")
        mx.save_safetensors(str(path), tensors | dict(zip(names, planes, strict=True)))
        config = json.loads((tmp_path / "config.json").read_text())
        config["quantization"] = {"bits": bits, "group_size": 64}
        (tmp_path / "config.json").write_text(json.dumps(config))
    model.lm_head.weight = head / mx.linalg.norm(head, axis=1, keepdims=True)
    tokens = prompts(61)
    error = relative_error(logits_of(tmp_path, tokens, host), mlx_lm_logits(model, tokens))
    assert error < (1e-3 if bits else 5e-6)  # what blocks mean, divided, is held in f16


@pytest.mark.parametrize("positions", ["rope", "nope"])
def test_granite_4_with_one_block(tmp_path: Path, positions: str) -> None:
    config = config_of("granitemoehybrid") | {"position_embedding_type": positions}
    model, tokens = build_model(config), prompts(config["vocab_size"])
    path = save_folder(model, config, tmp_path / "model") / "model.safetensors"
    tensors = mx.load(str(path))
    for name in [name for name in tensors if ".mlp." in name]:
        array = tensors.pop(name)
        if ".gate_proj." in name:  # gate and up are one matrix, see GraniteMoeHybridMLP
            up = mx.load(str(path))[name.replace("gate_proj", "up_proj")]
            tensors[name.replace("mlp.gate_proj", "shared_mlp.input_linear")] = mx.concatenate([array, up])
        elif ".down_proj." in name:
            tensors[name.replace("mlp.down_proj", "shared_mlp.output_linear")] = array
    mx.save_safetensors(str(path), tensors)
    (path.parent / "model.safetensors.index.json").unlink(missing_ok=True)
    assert relative_error(logits_of(path.parent, tokens, "reference"), mlx_lm_logits(model, tokens)) < 1e-4
    for key, value, message in (("layer_types", ["conv", "attention"], 'layer_types is "conv"'),):
        (path.parent / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(SpecError, match=message):
            logits_of(path.parent, tokens, "reference")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = config_of("gpt_oss")
    folder = save_folder(build_model(config), config, tmp_path_factory.mktemp("model"))
    as_transformers(folder)
    return folder


@pytest.mark.parametrize("host", ["reference", "cpu"])
def test_gpt_oss_in_bf16(folder: Path, host: str) -> None:
    config = config_of("gpt_oss")
    model, tokens = build_model(config), prompts(config["vocab_size"])
    model.update(tree_map(lambda array: array.astype(mx.bfloat16).astype(mx.float32), model.parameters()))
    assert relative_error(logits_of(folder, tokens, host), mlx_lm_logits(model, tokens)) < 1e-4


def test_parts_of_columns_that_are_rows(folder: Path) -> None:
    spec, weights = import_model(folder, EXACT)
    plan = compile_spec(spec, targets=("cpu",)).artifact.plan
    parts = {part.name: part for weight in plan.weights for part in weight.parts}
    mapped, stored = MappedWeights(open_weights(weights)), mx.load(str(folder / "model.safetensors"))
    joined = np.array(stored[EXPERTS.format(1) + "gate_up_proj"].astype(mx.float32))
    expected = {
        "gate": joined[:, :, ::2],
        "up": joined[:, :, 1::2],
        "down": np.array(stored[EXPERTS.format(1) + "down_proj"].astype(mx.float32)),
    }
    for role, array in expected.items():
        whole, numbers = parts[f"layers.1.mlp.experts.{role}"], array.swapaxes(1, 2).reshape(-1, array.shape[1])
        of_expert = array.shape[2]
        for rows in (None, (of_expert, 3 * of_expert)):
            for columns in (None, (3, 20)):
                part = open_tensor(mapped, slice_source(whole, rows, columns))
                wanted = numbers[slice(*(rows or (None,))), slice(*(columns or (None,)))]
                before = mapped.read_bytes
                np.testing.assert_array_equal(part.numbers(0, len(wanted)), wanted, err_msg=f"{role} {rows} {columns}")
                assert mapped.read_bytes - before == wanted.size * 2 and not part.is_plain


def test_a_transposed_tensor_of_another_shape_is_refused(folder: Path, tmp_path: Path) -> None:
    stored = mx.load(str(folder / "model.safetensors"))
    name = EXPERTS.format(0) + "gate_up_proj"
    mx.save_safetensors(
        str(tmp_path / "model.safetensors"), stored | {name: mx.contiguous(stored[name].swapaxes(1, 2))}
    )
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(WeightsError, match="another shape or type than the model's"):
        logits_of(tmp_path, [[1]], "reference")


def as_dbrx(folder: Path, more_rows: int = 0, **changed: object) -> Path:
    """transformers' own tensors: of each layer's experts one matrix, of which the last has rows as columns."""
    recorded = config_effects.load_recorded()["dbrx"]
    tensors = {name: mx.array(held) for name, held in config_effects.weights("dbrx", recorded.shapes).items()}
    name = "transformer.blocks.1.ffn.experts.mlp.w2"
    tensors[name] = mx.concatenate([tensors[name], tensors[name][:more_rows]])
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    config = config_effects.base_config("dbrx", "rope_theta")
    config["ffn_config"] |= {"moe_normalize_expert_weights": 1} | changed
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("host", few(["reference", "cpu", "sim"], ["cpu"]))
def test_dbrx_has_its_last_projections_transposed(host: str, tmp_path: Path) -> None:
    got = logits_of(as_dbrx(tmp_path), prompts(config_effects.VOCAB), host)[0][-1][: config_effects.NUM_LOGITS]
    assert relative_error([got], [np.array(config_effects.load_recorded()["dbrx"].bases["rope_theta"])]) < 5e-6


@pytest.mark.long
def test_dbrx_over_two_ranks(tmp_path: Path) -> None:
    folder, tokens = as_dbrx(tmp_path), prompts(config_effects.VOCAB)
    check_split(folder, tokens, logits_of(folder, tokens, "reference"), 1e-5)


def test_dbrx_with_what_nobody_has_is_refused(tmp_path: Path) -> None:
    tokens = prompts(config_effects.VOCAB)
    with pytest.raises(WeightsError, match=r"'transformer.blocks.1.ffn.experts.mlp.w2' has 240 rows, the model 200"):
        logits_of(as_dbrx(tmp_path, more_rows=40), tokens, "reference")
    with pytest.raises(SpecError, match=r"moe_normalize_expert_weights is 2.0; expected 1"):
        import_model(as_dbrx(tmp_path, moe_normalize_expert_weights=2.0), EXACT)
    config = json.loads((as_dbrx(tmp_path) / "config.json").read_text()) | {"rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError, match=r"rope_theta is 10000.0; expected 5000.0, as the rest of the file has it"):
        import_model(tmp_path, EXACT)
