"""Encoders: rows of tiny random models are those that transformers gave, on each host, whatever else is in a step."""

import asyncio
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import mlxr
from mlxr.cli import main
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.pool import Pooling
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr_tests.encoder_models import CONFIGS, TEXTS, recorded, rows_of, save_encoder, save_encoder_gguf, save_nomic
from mlxr_tests.few import few
from mlxr_tests.tolerances import check_logits

HOSTS = ("reference", "cpu", "sim")
RECORDED = recorded()["encoders"]


def test_all_cases_are_recorded() -> None:
    assert {name: case["config"] for name, case in RECORDED.items()} == CONFIGS


def rows_given(model: mlxr.Model, texts: list[list[int]]) -> np.ndarray:
    """The rows of the tokens of texts in one step."""
    ids = [model.pager.add_sequence() for _ in texts]
    requests = [BatchRequest(seq_id, text, 0, "all") for seq_id, text in zip(ids, texts, strict=True)]
    rows = model.host.read(launch_step(model.host, model.pager, requests)).copy()
    for seq_id in ids:
        model.pager.free(seq_id)
    return rows


SHORT = [
    ("bert", "cpu"),
    ("roberta", "reference"),
    ("nomic", "cpu"),
    ("modernbert", "cpu"),
    ("modernbert", "sim"),
    ("gemma", "cpu"),
]


@pytest.mark.parametrize(("name", "host"), few([(name, host) for name in CONFIGS for host in HOSTS], SHORT))
def test_rows_are_those_of_transformers(name: str, host: str, tmp_path: Path) -> None:
    """Several texts in a step, one of them a single token, which is also a step of its own."""
    case = RECORDED[name]
    folder = save_encoder(case, tmp_path / "model")
    changes = mlxr.Changes(compute="exact", activation_dtype="f32")
    with mlxr.load(folder, host=host, changes=changes) as model:
        assert model.artifact.plan.arena.size_bytes == 0 and model.artifact.spec.output == "hidden"
        rows = rows_given(model, TEXTS)
        expected = rows_of(case)
        check_logits("rows", rows, np.concatenate(expected), "f32")
        pooled: dict[Pooling, list[np.ndarray]] = {
            "mean": [each.mean(0, dtype=np.float64) for each in expected],
            "cls": [each[0] for each in expected],
            "last": [each[-1] for each in expected],
        }
        for pooling, vectors in pooled.items():
            check_logits(pooling, model.embed(TEXTS, pooling=pooling, normalize=False), np.stack(vectors), "f32")
            check_logits("alone", model.embed(TEXTS[1:2], pooling=pooling, normalize=False), vectors[1][None], "f32")
        ran = {
            kernel for kernel in map(str, model.host.launches) if "attend_text" in kernel or "text_attention" in kernel
        }
        assert ran, f"attention within texts did not run: {sorted(map(str, model.host.launches))}"


def test_texts_for_which_a_step_has_no_room_wait(tmp_path: Path) -> None:
    """They are read whole in the next one."""
    folder = save_encoder(RECORDED["bert"], tmp_path / "model")
    with mlxr.load(folder, host="cpu", changes=mlxr.Changes(compute="exact")) as model:
        most, text = model.artifact.plan.max_tokens, list(range(37))
        assert most % len(text) > 1, "some of a text would have room"
        vectors = model.embed([text] * (most // len(text) + 2), pooling="mean")
    assert np.array_equal(vectors, np.repeat(vectors[:1], len(vectors), axis=0))


def test_texts_longer_than_tiles(tmp_path: Path) -> None:
    """Several tiles of queries and keys behind another text, in a layer that sees all and in one with a window."""
    case = RECORDED["modernbert"]
    tensors = {name: shape for name, shape in case["tensors"].items() if not re.search(r"layers\.[2-9]", name)}
    config = case["config"] | {"num_hidden_layers": 2, "max_position_embeddings": 256}
    folder = save_encoder({"config": config, "tensors": tensors}, tmp_path / "model")
    rng, rows = np.random.default_rng(6), {}
    texts = [rng.integers(61, size=count).tolist() for count in (40, 130, 1)]
    for host in HOSTS:
        changes = mlxr.Changes(compute="exact", activation_dtype="f32")
        with mlxr.load(folder, host=host, changes=changes) as model:
            rows[host] = rows_given(model, texts)
    for host in ("cpu", "sim"):
        check_logits(host, rows[host], rows["reference"], "f32")


GGUF = [("bert", "bert"), ("nomic", "nomic-bert"), ("modernbert", "modern-bert"), ("gemma", "gemma-embedding")]


@pytest.mark.parametrize(("name", "architecture"), GGUF)
def test_rows_of_gguf_files(name: str, architecture: str, tmp_path: Path) -> None:
    """EmbeddingGemma's with its products behind the pooling."""
    rng = np.random.default_rng(5)
    shapes = {"dense_2.weight": (96, 80), "dense_3.weight": (80, 96)} if name == "gemma" else {}
    dense = {name: rng.normal(size=shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    path = save_encoder_gguf(RECORDED[name], architecture, tmp_path / "model.gguf", dense)
    with mlxr.load(path, host="reference", changes=mlxr.Changes(compute="exact", activation_dtype="f32")) as model:
        assert model.default_pooling() == "mean"
        expected = np.stack([each.mean(0, dtype=np.float64) for each in rows_of(RECORDED[name])])
        check_logits("means", model.embed(TEXTS, pooling="mean", normalize=False), expected, "f32")
        for matrix in dense.values():
            expected = expected @ matrix.T
        check_logits("embeddings", model.embed(TEXTS, normalize=False), expected, "f32")


NOMIC = [("NomicBertModel", ""), ("NomicBertForPreTraining", "bert."), ("NomicBertForMaskedLM", "nomic_bert.")]


@pytest.mark.parametrize(("architecture", "prefix"), few(NOMIC, NOMIC[1:2]))
def test_rows_of_nomics_own_files(architecture: str, prefix: str, tmp_path: Path) -> None:
    folder = save_nomic(RECORDED["nomic"], tmp_path / "model", architecture, prefix)
    with mlxr.load(folder, host="reference", changes=mlxr.Changes(compute="exact", activation_dtype="f32")) as model:
        check_logits("rows", rows_given(model, TEXTS), np.concatenate(rows_of(RECORDED["nomic"])), "f32")


def test_dense_modules_behind_the_pooling(tmp_path: Path) -> None:
    """As EmbeddingGemma has two, by sentence-transformers' files; a pooling that is named goes without."""
    case, rng = RECORDED["bert"], np.random.default_rng(5)
    folder = save_encoder(case, tmp_path / "model")
    expected = np.stack([each.mean(0, dtype=np.float64) for each in rows_of(case)])
    plain, modules = expected, [("Transformer", ""), ("Pooling", "1_Pooling")]
    for number, (out, activation, has_bias) in enumerate(
        [(40, "torch.nn.modules.linear.Identity", False), (24, "x.Tanh", True)], 2
    ):
        weight, bias = rng.normal(size=(out, expected.shape[1])) / 8, rng.normal(size=out) * has_bias
        expected = expected @ weight.T + bias
        expected = np.tanh(expected) if has_bias else expected
        own = folder / f"{number}_Dense"
        own.mkdir()
        (own / "config.json").write_text(json.dumps({"out_features": out, "activation_function": activation}))
        tensors = {"linear.weight": weight, "linear.bias": bias} if has_bias else {"linear.weight": weight}
        save_file({name: numbers.astype(np.float32) for name, numbers in tensors.items()}, own / "model.safetensors")
        modules.append(("Dense", own.name))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    said = [
        {"idx": i, "type": f"a.{kind}", "path": path} for i, (kind, path) in enumerate([*modules, ("Normalize", "9")])
    ]
    (folder / "modules.json").write_text(json.dumps(said))
    with mlxr.load(folder, host="reference", changes=mlxr.Changes(compute="exact", activation_dtype="f32")) as model:
        check_logits("dense", model.embed(TEXTS, normalize=False), expected, "f32")
        check_logits("plain", model.embed(TEXTS, pooling="mean", normalize=False), plain, "f32")
        assert model.embed(TEXTS, dimensions=24).shape == (len(TEXTS), 24)
        with pytest.raises(mlxr.RequestError, match="dimensions is 25; this model's embeddings have 24"):
            model.embed(TEXTS, dimensions=25)
    with mlxr.Engine(folder, host="reference") as engine:
        vectors = np.stack(asyncio.run(engine.embed(TEXTS)))
    check_logits("engine", vectors, expected, "f32")
    (folder / "3_Dense" / "config.json").write_text('{"activation_function": "a.Softmax"}')
    with (
        mlxr.load(folder, host="reference") as model,
        pytest.raises(mlxr.RequestError, match="'Softmax', which is not"),
    ):
        model.embed(TEXTS)


def test_what_fits_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is kept of a text, so any number goes at once; there is no speed of tokens."""
    folder = save_encoder(RECORDED["bert"], tmp_path / "model")
    assert main(["fit", str(folder), "--json"]) == 0
    ((model,),) = [each["models"] for each in json.loads(capsys.readouterr().out)["machines"]]
    told = model["fit"]
    assert (told["arena_bytes"], told["longest_context"], told["speed"], told["sequences"]) == (0, 40, None, 1024)
