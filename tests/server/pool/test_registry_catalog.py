"""A server that serves what is registered, while names come, go, and come to mean other models."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxr.loading.add_model import add_model
from mlxr.registry.registry import Registry
from mlxr.server.pool import registry_catalog
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.registry_catalog import RegistryCatalog
from mlxr_tests.running_server import running_server, tiny_source
from mlxr_tests.storyteller import Q8_0, TINY


def test_what_is_registered_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(registry_catalog, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr("mlxr.loading.add_model.prepare", lambda host, artifact: None)  # it takes seconds
    copy = tmp_path / "copy.gguf"
    shutil.copy(TINY, copy)
    with running_server(lambda: ModelPool([], catalog=RegistryCatalog(tiny_source("")))) as server:

        def names() -> list[str]:
            return [model["id"] for model in server.http.get("/v1/models").json()["data"]]

        def ask(**more: Any) -> Any:
            body = {"model": "mine", "prompt": [5, 6], "max_tokens": 3, "temperature": 0} | more
            return server.http.post("/v1/completions", json=body)

        assert names() == [] and ask().status_code == 404
        add_model(TINY, "mine")
        assert names() == ["mine"] and ask().status_code == 200
        refused = ask(prompt=[4000])
        assert refused.status_code == 400 and "outside the vocabulary of 640" in refused.json()["error"]["message"]
        add_model(Q8_0, "mine", replaces=True)
        assert ask(prompt=[4000]).status_code == 200, "the name means the storyteller now, which has 4096 tokens"
        told = server.http.get("/metrics").text.splitlines()
        counts = [
            line for line in told if line.startswith('vllm:generation_tokens_total{engine="0",model_name="mine"}')
        ]
        assert [line.split()[1] for line in counts] == ["6.0"], "the name's counters go on"
        add_model(copy, "other")
        Registry().remove("mine")
        server.do(lambda: server.pool.unload("mine"))
        assert names() == ["other"] and ask().status_code == 404
        copy.unlink()
        (entry,) = server.http.get("/api/tags").json()["models"]
        assert (entry["name"], entry["size"], entry["digest"]) == ("other", 0, ""), "a lost file hides no other model"
