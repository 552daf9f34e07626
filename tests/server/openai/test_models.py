"""/v1/models, as OpenAI's own client sees it."""

import dataclasses

import anthropic
import openai

from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.running_server import EXACT, running_server, tiny_source


def test_contexts_are_told_before_anything_is_loaded() -> None:
    shorter = dataclasses.replace(EXACT, context=64)
    gone = dataclasses.replace(tiny_source("gone"), model="no/such/folder")
    sources = [tiny_source(), tiny_source("short", changes=shorter), gone]
    with running_server(lambda: ModelPool(sources)) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        told = {model.id: model.to_dict().get("max_model_len") for model in client.models.list()}
        assert told == {"tiny": 512, "short": 64, "gone": None}
        assert client.models.retrieve("short").to_dict()["max_model_len"] == 64
        short = anthropic.Anthropic(base_url=running.url, api_key="none").models.retrieve("short").to_dict()
        assert (short["max_input_tokens"], short["max_tokens"], short["lifecycle"]) == (64, 64, "active")
        states = running.http.get("/status").json()["models"]
        assert {model["state"] for model in states} == {"cold"}
