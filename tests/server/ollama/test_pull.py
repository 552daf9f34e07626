"""/api/pull, as Ollama's own client sees it, from a server that speaks the hub's protocol."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from mlxr.registry import RegistryError
from mlxr.registry.records import ModelRecord
from mlxr.registry.registry import Registry
from mlxr.server.errors import pull_error
from mlxr.server.pool import registry_catalog
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.registry_catalog import RegistryCatalog
from mlxr.server.settings import ServerSettings
from mlxr_tests.running_server import RunningServer, running_server, tiny_source
from mlxr_tests.stand_in_hub import StandInHub, the_hub
from mlxr_tests.storyteller import TINY

NAME = "tiny-Q8_0.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    monkeypatch.setattr(registry_catalog, "_FRESH_SECONDS", 0.0)
    hub = StandInHub(
        {"org/tiny": {NAME: TINY.read_bytes()}, "org/closed": {NAME: TINY.read_bytes()}}, gated={"org/closed"}
    )
    with the_hub(hub, tmp_path, monkeypatch):
        yield hub


@pytest.fixture
def server(hub: StandInHub) -> Iterator[RunningServer]:
    """It has one model, and serves what it fetches beside that."""
    catalog = RegistryCatalog(tiny_source(""), only=set())
    with running_server(
        lambda: ModelPool([tiny_source("own")], catalog=catalog), ServerSettings(allow_pull=True)
    ) as running:
        yield running


def names(server: RunningServer) -> list[str]:
    return [model["id"] for model in server.http.get("/v1/models").json()["data"]]


def test_the_client_pulls_with_progress_and_gets_answers(hub: StandInHub, server: RunningServer) -> None:
    client = ollama.Client(host=server.url, timeout=60)
    told = list(client.pull("hf.co/org/tiny:Q8_0", stream=True))
    assert (told[0].status, told[-1].status) == ("pulling manifest", "success")
    fetched = [step for step in told if step.digest and (step.status or "").startswith("fetching")]
    done = [step.completed or 0 for step in fetched]
    assert done == sorted(done) and done[-1] == fetched[-1].total == TINY.stat().st_size
    digest = Registry().get("org/tiny:Q8_0").files[0].sha256  # type: ignore[union-attr]
    assert {step.digest for step in fetched} == {f"sha256:{digest}"}
    assert names(server) == ["own", "org/tiny:Q8_0"]
    answer = client.generate("hf.co/org/tiny:Q8_0", "Once", options={"num_predict": 3, "temperature": 0})
    assert answer.response == client.generate("own", "Once", options={"num_predict": 3, "temperature": 0}).response
    assert client.pull("org/tiny:Q8_0").status == "success", "it is here already"
    assert client.pull("own:latest").status == "success"


@pytest.mark.parametrize(
    ("model", "message"),
    [("org/absent", "has no model org/absent"), ("org/closed", "org/closed is gated"), ("org/tiny:Q2", "has 'Q2' in")],
)
def test_errors_are_told_in_the_stream(server: RunningServer, model: str, message: str) -> None:
    client = ollama.Client(host=server.url, timeout=60)
    with pytest.raises(ollama.ResponseError, match=message):
        list(client.pull(model, stream=True))
    with pytest.raises(ollama.ResponseError, match=message) as raised:
        client.pull(model)
    assert raised.value.status_code == 502
    assert names(server) == ["own"]


def test_models_that_cannot_be_served_are_no_fault_of_the_server(hub: StandInHub, server: RunningServer) -> None:
    hub.repos["org/odd"] = {"config.json": b'{"model_type": "octopus"}', "model.safetensors": bytes(64)}
    Registry().add(ModelRecord("org/tiny", TINY.with_name("other.gguf"), "gguf", "0"), "a spec")
    for model, status, message in (
        ("org/odd", 422, "org/odd is not a model that this server can run: config.json:"),
        ("org/tiny", 409, "'org/tiny' is the name of another model here: 'mlxr remove' that one first"),
    ):
        told = server.http.post("/api/pull", json={"model": model, "stream": False})
        assert told.status_code == status and told.json()["error"].startswith(message), told.text
    broken = pull_error("org/x", RegistryError("/a/models.db: the disk is full"))
    assert (broken.status, broken.code) == (500, "registry_failed") and "models.db: the disk is full" in broken.message


def test_a_fetch_is_shared_and_goes_on_after_all_have_left(hub: StandInHub, server: RunningServer) -> None:
    gate = hub.held[NAME] = threading.Event()

    def begun(response: httpx.Response) -> Iterator[str]:
        lines = response.iter_lines()
        for line in lines:
            if json.loads(line).get("completed"):
                return lines  # the client leaves when nobody has them any more
        raise AssertionError("it ended before it began")

    def ask() -> Any:
        return server.http.stream("POST", "/api/pull", json={"model": "org/tiny"})

    def answers(list_: list[Any]) -> None:
        list_.append(
            httpx.post(f"{server.url}/api/pull", json={"model": "org/tiny", "stream": False}, timeout=60).json()
        )

    with ask() as first:
        lines = begun(first)
        with ask() as second:
            begun(second)
    del lines
    until = time.monotonic() + 20
    gate.set()  # its thread sees at the next bytes that all have left
    while server.do(lambda: bool(server.state.pulls._running)):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert hub.fetched() == [NAME] * 2, "once, and where the hub redirects to"
    assert names(server) == ["own"]
    told: list[Any] = []
    threads = [threading.Thread(target=answers, args=(told,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [{"status": "success"}] * 3 and names(server) == ["own", "org/tiny"]
    resumed = hub.fetched()[2:]
    assert len(resumed) <= 2 and all(" bytes=" in part for part in resumed), "it went on from there"


def test_without_the_option_it_is_refused(hub: StandInHub) -> None:
    with running_server(lambda: ModelPool([tiny_source()])) as server:
        told = server.http.post("/api/pull", json={"model": "org/tiny"})
        assert told.status_code == 403 and "start it with --allow-pull" in told.json()["error"]
        assert server.http.get("/inspector/server").json() == {"allow_pull": False}
    assert not hub.asked


def test_broken_connections_and_full_disks_are_told_and_the_next_pull_goes_on(
    hub: StandInHub, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.breaks[NAME] = [100_000, *[0] * 9]
    with pytest.raises(ollama.ResponseError, match="What was fetched is kept"):
        list(ollama.Client(host=server.url).pull("org/tiny", stream=True))
    hub.breaks.clear()
    full = shutil._ntuple_diskusage(1 << 30, 1 << 30, 0)  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr("mlxr.hub.fetch.shutil.disk_usage", lambda path: full)
        with pytest.raises(ollama.ResponseError, match="are to be fetched, and 0 B are free"):
            ollama.Client(host=server.url).pull("org/tiny")
    hub.asked.clear()
    assert ollama.Client(host=server.url, timeout=60).pull("org/tiny").status == "success"
    assert all(" bytes=98304-" in part for part in hub.fetched()) and names(server) == ["own", "org/tiny"]


def test_names_that_are_not_on_the_hub(hub: StandInHub, server: RunningServer) -> None:
    told = server.http.post("/api/pull", json={"name": "llama3.2"})
    assert told.status_code == 400 and "expected ORG/REPO" in told.json()["error"]
    for name in ("org/tiny:../../secret.gguf", "org/tiny@main/../../../api/whoami"):
        told = server.http.post("/api/pull", json={"name": name})
        assert told.status_code == 400 and "cannot be the name of a model" in told.json()["error"]
    assert not hub.asked
    assert server.http.post("/api/pull", json={}).status_code == 400
