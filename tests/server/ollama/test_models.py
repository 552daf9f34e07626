"""Ollama's lists of models."""

from typing import Any

import pytest

from mlxr.server.ollama import models
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.running_server import running_server, tiny_source


def test_a_model_that_is_unloaded_while_the_list_is_made_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server(lambda: ModelPool([tiny_source()])) as server:
        assert server.http.post("/api/generate", json={"model": "tiny"}).json()["done_reason"] == "load"
        assert len(server.http.get("/api/ps").json()["models"]) == 1
        facts, unloaded = models._facts, []

        def slow_facts(model: Any) -> Any:
            unloaded.append(server.do(lambda: server.pool.unload("tiny")))
            return facts(model)

        monkeypatch.setattr(models, "_facts", slow_facts)
        assert server.http.get("/api/ps").json() == {"models": []} and unloaded == [True]
