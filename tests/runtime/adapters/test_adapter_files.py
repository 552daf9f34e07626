"""Adapters of PEFT, mlx-lm and llama.cpp are what their files say, and what is not supported is refused by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mlxr
from mlxr.compiler.artifact import Recipe, TensorSource
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.adapters.adapter_matrices import adapter_matrices
from mlxr.runtime.adapters.open_adapter import open_adapter
from mlxr_tests.adapter_files import MadeAdapter
from mlxr_tests.few import few
from mlxr_tests.tiny_llama import HIDDEN, tiny_adapter, tiny_llama

PROMPT = [1, 5, 9, 2, 7, 30, 44]
HOSTS = few(["reference", "cpu", "sim"], ["reference"])
WRITERS: dict[str, Callable[[MadeAdapter, Path], Path]] = {
    "peft": lambda made, to: made.peft(to / "peft"),
    "mlx-lm": lambda made, to: made.mlx_lm(to / "mlx"),
    "gguf": lambda made, to: made.gguf(to / "adapter.gguf"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("base"))


def logits(folder: Path, host: str = "reference", **options: Any) -> Any:
    changes = mlxr.Changes(compute="exact", activation_dtype="f32", cache_dtype="f32")
    with mlxr.load(str(folder), host=host, changes=changes, **options) as model:
        return model.logits(PROMPT)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_it_is_what_the_merged_weights_are(writer: str, host: str, base: Path, tmp_path: Path) -> None:
    """PEFT merges alpha / rank * B @ A into weights; so does every other writer."""
    made = tiny_adapter(3)
    merged = logits(tiny_llama(tmp_path / "merged", made.deltas))
    adapted = logits(base, host, adapter=WRITERS[writer](made, tmp_path))
    assert np.abs(merged - logits(base)).max() > 0.5
    np.testing.assert_allclose(adapted, merged, atol=2e-4)


@pytest.mark.long
def test_mlx_lm_s_own_is_the_same(base: Path, tmp_path: Path) -> None:
    mlx_lm = pytest.importorskip("mlx_lm.utils")
    mx = pytest.importorskip("mlx.core")
    folder = tiny_adapter(4).mlx_lm(tmp_path / "mlx", num_layers=2)
    tuner = pytest.importorskip("mlx_lm.tuner.utils")
    model, _ = mlx_lm.load_model(base)
    model = tuner.load_adapters(model, str(folder))
    with mx.stream(mx.cpu):
        expected = np.array(model(mx.array([PROMPT]))[0].astype(mx.float32))
    np.testing.assert_allclose(logits(base, adapter=folder), expected, atol=2e-4)


def test_scales(base: Path, tmp_path: Path) -> None:
    """Of rslora, of patterns by module, and after the path, which no name of an adapter could be."""
    made = tiny_adapter(5, rank=4, only=("down_proj", "q_proj"))
    half = {name: 0.5 * delta for name, delta in made.deltas.items()}
    merged = logits(tiny_llama(tmp_path / "half", half))
    np.testing.assert_allclose(logits(base, adapter=f"{made.peft(tmp_path / '_my löra (1)')}:0.5"), merged, atol=2e-4)
    stabilised = made.peft(tmp_path / "b", use_rslora=True, lora_alpha=2.0)  # 2 / sqrt(4) = 0.5 * alpha / rank
    np.testing.assert_allclose(logits(base, adapter=stabilised), merged, atol=2e-4)
    own = {n: (2.0 if "q_proj" in n else 0.5) * d for n, d in made.deltas.items()}
    patterned = made.peft(tmp_path / "c", lora_alpha=4.0, alpha_pattern={"q_proj": 16.0, r"layers\.\d+\.mlp.*": 4.0})
    np.testing.assert_allclose(logits(base, adapter=patterned), logits(tiny_llama(tmp_path / "d", own)), atol=2e-4)


def test_the_numbers_that_multiply_a_module_s_product(tmp_path: Path) -> None:
    """No alpha in a GGUF file, which a folder may have instead; factors of the model's files; patterns of PEFT."""
    made = tiny_adapter(5, rank=4, only=("layers.0.mlp.up_proj",))
    opened = open_adapter(replace(made, alpha=0.0).gguf(tmp_path / "own.gguf").parent)
    assert [change.scale for change in opened.changes.values()] == [1.0]
    name, shape = "layers.0.mlp.up", made.deltas["model.layers.0.mlp.up_proj"].shape
    plain, doubled = (
        adapter_matrices(
            opened,
            [TensorSource(name, shape, (), (Recipe("blk.0.ffn_up.weight", times=times),))],
            mlxr.Adapters(rank=8, slots=1),
        ).matrices
        for times in (1.0, 2.0)
    )
    np.testing.assert_array_equal(doubled[f"{name}.lora_b"], 2 * plain[f"{name}.lora_b"])
    np.testing.assert_array_equal(doubled[f"{name}.lora_a"], plain[f"{name}.lora_a"])
    folder = made.peft(tmp_path / "peft", alpha_pattern={"model.language_model.layers.0.mlp.up_proj": 2.0})
    _changed(
        folder / "adapter_model.safetensors",
        lambda t: t.update({n.replace("model.layers", "model.language_model.layers"): t.pop(n) for n in [*t]}),
    )
    assert open_adapter(folder).changes["model.layers.0.mlp.up_proj"].scale == 2.0 / 4


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, "DoRA"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "biases": ({"bias": "all"}, "trained biases"),
    "another type": ({"peft_type": "IA3"}, "expected LORA"),
    "another rank": ({"r": 8}, "has rank 4, adapter_config.json says 8"),
    "no alpha": ({"lora_alpha": None}, "lora_alpha is None"),
    "changed weights": ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
    "activated": ({"alora_invocation_tokens": [1, 2]}, "activated LoRA"),
    "a bad pattern": ({"rank_pattern": {"(": 4}}, "not a regular expression"),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_what_is_not_supported_is_refused_by_name(case: str, tmp_path: Path) -> None:
    config, message = BAD_CONFIGS[case]
    with pytest.raises(WeightsError, match=message):
        open_adapter(tiny_adapter(1).peft(tmp_path, **config))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


FIRST = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
BAD_TENSORS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "other base": (
        lambda t: t.update({FIRST: np.zeros((4, 96), np.float32)}),
        rf"is for a matrix of \[88, 96\], and the model's \(layers.0.mlp.up\) is \[88, {HIDDEN}\]",
    ),
    "one missing": (lambda t: t.pop(FIRST), "lacks the first matrix of 'model.layers.0.mlp.up_proj'"),
    "ranks that differ": (lambda t: t.update({FIRST: np.zeros((8, 48), np.float32)}), "have ranks 8 and 4"),
    "integers": (lambda t: t.update({FIRST: np.zeros((4, 48), np.int32)}), "expected a matrix of floats"),
    "not finite": (lambda t: t.update({FIRST: np.full((4, 48), np.nan, np.float32)}), "not finite"),
    "magnitudes": (
        lambda t: t.update({"base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector": t[FIRST]}),
        "lora_magnitude_vector', which is not a matrix",
    ),
    "a layer that is not there": (
        lambda t: t.update({k.replace("layers.0", "layers.9"): t.pop(k) for k in [*t] if "layers.0.mlp.up" in k}),
        "changes 'model.layers.9.mlp.up_proj', and adapters of this model may change attention",
    ),
    "embeddings": (
        lambda t: t.update(
            {k.replace("layers.0.mlp.up_proj", "embed_tokens"): t.pop(k) for k in [*t] if ".0.mlp.up" in k}
        ),
        "changes 'model.embed_tokens'",
    ),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_bad_tensors_are_refused(case: str, base: Path, tmp_path: Path) -> None:
    folder = tiny_adapter(1).peft(tmp_path / "bad")
    change, message = BAD_TENSORS[case]
    _changed(folder / "adapter_model.safetensors", change)
    with pytest.raises(WeightsError, match=message):
        mlxr.load(str(base), host="reference", adapter=folder)


def test_damaged_files_are_refused(base: Path, tmp_path: Path) -> None:
    folder, file = tiny_adapter(1).peft(tmp_path / "cut"), tiny_adapter(1).gguf(tmp_path / "cut.gguf")
    for path in (folder / "adapter_model.safetensors", file):
        _cut(path)
    for path in (folder, file, tmp_path / "nowhere", tmp_path, "x" * 5000):
        with pytest.raises(
            WeightsError, match=r"truncated|cut|beyond|no such adapter|has no adapter_config|ends|File name too long"
        ):
            mlxr.load(str(base), host="reference", adapter=path)
    (folder / "adapter_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(WeightsError, match="cannot be read as JSON"):
        mlxr.load(str(base), host="reference", adapter=folder)
    with pytest.raises(WeightsError, match="is a GGUF file of type 'model', not an adapter"):
        mlxr.load(
            str(base), host="reference", adapter=tiny_adapter(1).gguf(tmp_path / "m.gguf", **{"general.type": "model"})
        )
    dora = tiny_adapter(1).mlx_lm(tmp_path / "dora", fine_tune_type="dora")
    with pytest.raises(WeightsError, match="only lora is supported"):
        mlxr.load(str(base), host="reference", adapter=dora)
    assert json.loads((dora / "adapter_config.json").read_text())["fine_tune_type"] == "dora"
