"""A model's own sampling through each API: what a request does not name is as the file says."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

import mlxr
from mlxr.cli import main
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.api_calls import APIS, Api, Question
from mlxr_tests.running_server import CHATML, EXACT, RunningServer, running_server, tiny_source
from mlxr_tests.storyteller import TINY

OWN = {"temp": 1.5, "top_k": 3, "penalty_repeat": 1.25, "penalty_last_n": 5}
MEANT = {"temperature": 1.5, "top_k": 3, "repetition_penalty": 1.25, "repetition_range": 5}
"""The same by the library's names."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.gguf"
    reader = gguf.GGUFReader(TINY)
    kinds = {int: gguf.GGUFValueType.INT32, float: gguf.GGUFValueType.FLOAT32}
    own = {f"general.sampling.{name}": MetadataDetails(kinds[type(value)], value) for name, value in OWN.items()}
    copy_with_new_metadata(reader, gguf.GGUFWriter(path, "llama"), own, [])
    return path


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[RunningServer]:
    (file.parent / "chatml.jinja").write_text(CHATML)
    source = replace(tiny_source("own", template=file.parent / "chatml.jinja"), model=str(file))
    with running_server(lambda: ModelPool([source])) as running:
        yield running


@pytest.fixture(scope="module")
def model() -> Iterator[mlxr.Model]:
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as loaded:
        yield loaded


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_each_api_samples_as_the_file_says(server: RunningServer, api: Api, model: mlxr.Model) -> None:
    question = Question("The fox", model="own", max_tokens=24, seed=3)
    body = api.body(question)
    del body.get("options", body)["temperature"]
    prompt = api.prompt(question.text, model)
    named = {"top_k": 1}
    for given in ({}, named):
        fields = {name: value for name, value in given.items() if api.path != "/v1/completions" or name}
        asked = body | {"options": body["options"] | fields} if "options" in body else body | fields
        told = server.http.post(api.path, json=asked)
        assert told.status_code == 200, told.text
        expected = model.generate(prompt, sampling=mlxr.Sampling(**{**MEANT, **given}, seed=3, max_tokens=24)).text
        assert api.answer(told.text.splitlines(), stream=False).text == expected


def test_it_is_told(
    server: RunningServer, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLXR_DATA_DIR", str(file.parent / "data"))
    server.http.post("/v1/completions", json={"model": "own", "prompt": "A", "max_tokens": 1})
    (view,) = server.http.get("/inspector/models").json()
    assert view["sampling"] == MEANT and view["sampling_source"] == "general.sampling.* of the GGUF file"
    shown = server.http.post("/api/show", json={"model": "own"}).json()["parameters"]
    assert [line.split() for line in shown.splitlines()] == [
        ["temperature", "1.5"],
        ["top_k", "3"],
        ["repeat_penalty", "1.25"],
        ["repeat_last_n", "5"],
    ]
    run = ["run", str(file), "--host", "cpu", "--prompt", "A", "--max-tokens", "2", "--seed", "1"]
    assert main([*run, "--stats", "--top-k", "9"]) == 0
    line = next(line for line in capsys.readouterr().err.splitlines() if "sampling" in line)
    assert "temperature 1.5, top-k 9, repetition-penalty 1.25, repetition-range 5; by default:" in line
    assert main([*run, "--json", "--temperature", "0"]) == 0
    told = json.loads(capsys.readouterr().out)["sampling"]
    assert told["temperature"] == 0 and told["model"] == MEANT
    assert main(["add", str(file), "--name", "own", "--host", "cpu"]) == 0
    capsys.readouterr()
    main(["show", "own", "--json"])
    assert json.loads(capsys.readouterr().out)["sampling"] == MEANT
    main(["show", "own"])
    assert "sampling   temperature 1.5, top-k 3, repetition-penalty 1.25" in capsys.readouterr().out
