"""Encoders: rows of tiny random models are those that transformers gave, on each host, whatever else is in a step."""

from pathlib import Path

import numpy as np
import pytest

import mlxr
from mlxr.runtime.engine.pool import Pooling
from mlxr.runtime.engine.step import launch_step
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr_tests.encoder_models import CONFIGS, TEXTS, recorded, rows_of, save_encoder, save_encoder_gguf
from mlxr_tests.few import few
from mlxr_tests.tolerances import check_logits

HOSTS = ("reference", "cpu", "sim")
RECORDED = recorded()["encoders"]


def test_all_cases_are_recorded() -> None:
    assert {name: case["config"] for name, case in RECORDED.items()} == CONFIGS


SHORT = [("bert", "sim"), ("roberta", "reference"), ("nomic", "cpu"), ("modernbert", "cpu"), ("modernbert", "sim")]


@pytest.mark.parametrize(("name", "host"), few([(name, host) for name in CONFIGS for host in HOSTS], SHORT))
def test_rows_are_those_of_transformers(name: str, host: str, tmp_path: Path) -> None:
    """Several texts in a step, one of them a single token, which is also a step of its own."""
    case = RECORDED[name]
    folder = save_encoder(case, tmp_path / "model")
    changes = mlxr.Changes(compute="exact", activation_dtype="f32")
    with mlxr.load(folder, host=host, changes=changes) as model:
        assert model.artifact.plan.arena.size_bytes == 0 and model.artifact.spec.output == "hidden"
        ids = [model.pager.add_sequence() for _ in TEXTS]
        requests = [BatchRequest(seq_id, text, 0, "all") for seq_id, text in zip(ids, TEXTS, strict=True)]
        rows = model.host.read(launch_step(model.host, model.pager, requests)).copy()
        for seq_id in ids:
            model.pager.free(seq_id)
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


@pytest.mark.parametrize(("name", "architecture"), [("bert", "bert"), ("nomic", "nomic-bert")])
def test_rows_of_gguf_files(name: str, architecture: str, tmp_path: Path) -> None:
    path = save_encoder_gguf(RECORDED[name], architecture, tmp_path / "model.gguf")
    with mlxr.load(path, host="reference", changes=mlxr.Changes(compute="exact", activation_dtype="f32")) as model:
        assert model.default_pooling() == "mean"
        expected = np.stack([each.mean(0, dtype=np.float64) for each in rows_of(RECORDED[name])])
        check_logits("means", model.embed(TEXTS, normalize=False), expected, "f32")
