"""Adapters of a server: chosen by the model's name or `lora`, loaded and unloaded by clients, several in a batch."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import mlxr
from mlxr.loading.adapter_paths import AdapterPath, GivenAdapters
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.settings import ServerSettings
from mlxr_tests.adapter_files import llama_shapes, made_adapter
from mlxr_tests.running_server import CHATML, EXACT, RunningServer, running_server, tiny_source
from mlxr_tests.storyteller import TINY

PROMPT = "Once upon a time"
HEADS = 4, 2
SHAPES = llama_shapes(layers=2, hidden=256, heads=4, kv_heads=2, head_dim=64, width=512)
ASKED = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    made = {name: made_adapter(SHAPES, HEADS, seed) for seed, name in enumerate("abc")}
    return {name: one.gguf(root / f"{name}.gguf") for name, one in made.items()}


@pytest.fixture(scope="module")
def served(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    template = tmp_path_factory.mktemp("template") / "chatml.jinja"
    template.write_text(CHATML)
    given = GivenAdapters((AdapterPath(str(files["a"]), "fox"), AdapterPath(str(files["b"]), "owl")), slots=3)
    source = tiny_source(template=template, adapters=given, host="reference", threads=None)
    with running_server(lambda: ModelPool([source]), ServerSettings(port=0, allow_adapters=True)) as running:
        yield running


@pytest.fixture(scope="module")
def expected(files: dict[str, Path]) -> dict[str, str]:
    adapters = {"fox": files["a"], "owl": files["b"], "hen": files["c"], "half": f"{files['a']}:0.5"}
    sampling = mlxr.Sampling(max_tokens=12, ignore_eos=True)
    with mlxr.load(TINY, host="reference", changes=EXACT, adapter=adapters) as model:
        said = {name: model.start([PROMPT], sampling=sampling, adapter=name).finish()[0].text for name in adapters}
        said["tiny"] = model.generate(PROMPT, sampling=sampling).text
    assert len(set(said.values())) == 5
    return said


def text(server: RunningServer, model: str = "tiny", **more: Any) -> str:
    answer = server.http.post("/v1/completions", json=ASKED | {"model": model} | more)
    assert answer.status_code == 200, answer.text
    said: str = answer.json()["choices"][0]["text"]
    return said


def test_by_the_model_s_name(served: RunningServer, expected: dict[str, str]) -> None:
    names = {"tiny": "tiny", "tiny:fox": "fox", "tiny:owl": "owl", "fox": "fox"}
    assert {name: text(served, name) for name in names} == {name: expected[of] for name, of in names.items()}
    missing = served.http.post("/v1/completions", json=ASKED | {"model": "tiny:cat"})
    assert missing.status_code == 404 and "there is no model 'tiny:cat'" in missing.text
    vectors = served.http.post("/v1/embeddings", json={"model": "tiny:fox", "input": PROMPT})
    assert vectors.status_code == 400 and "embeddings use no adapter" in vectors.text
    listed = {model["id"]: model.get("parent") for model in served.http.get("/v1/models").json()["data"]}
    assert listed == {"tiny": None, "tiny:fox": "tiny", "tiny:owl": "tiny"}
    assert served.http.get("/v1/models/tiny:owl").json()["parent"] == "tiny"


def test_every_api_knows_the_names(served: RunningServer, expected: dict[str, str]) -> None:
    options = {"temperature": 0, "num_predict": 12}
    body = {"model": "tiny:fox", "prompt": PROMPT, "raw": True, "stream": False, "options": options}
    assert expected["fox"].startswith(served.http.post("/api/generate", json=body).json()["response"])
    messages = [{"role": "user", "content": "hello"}]
    chat = {"messages": messages, "max_tokens": 8, "temperature": 0}
    plain, adapted = (
        served.http.post("/v1/chat/completions", json=chat | {"model": model}).json()["choices"][0]["message"][
            "content"
        ]
        for model in ("tiny", "tiny:fox")
    )
    assert plain != adapted
    told = served.http.post("/v1/messages", json=chat | {"model": "tiny:fox"}).json()
    assert told["content"][0]["text"] == adapted


def test_by_lora_fields(served: RunningServer, expected: dict[str, str]) -> None:
    assert text(served, lora=[{"id": 0, "scale": 1.0}]) == expected["fox"]
    assert text(served, lora=[{"id": 0, "scale": 0}, {"id": 1, "scale": 1}]) == expected["owl"]
    assert text(served, lora=[{"id": 0, "scale": 0.5}]) == expected["half"]
    assert text(served, lora=[]) == expected["tiny"]
    bad = {
        "gives several adapters a scale": {"lora": [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]},
        "lora has the id 7": {"lora": [{"id": 7, "scale": 1}]},
        "model names the adapter 'fox', and lora others": {"model": "tiny:fox", "lora": [{"id": 1, "scale": 1}]},
    }
    for message, fields in bad.items():
        answer = served.http.post("/v1/completions", json=ASKED | {"model": "tiny"} | fields)
        assert answer.status_code == 400 and message in answer.text


@pytest.mark.long
def test_scales_of_requests_that_say_nothing(served: RunningServer, expected: dict[str, str]) -> None:
    listed = served.http.get("/lora-adapters").json()
    assert [(one["id"], one["name"], one["scale"]) for one in listed] == [(0, "fox", 0.0), (1, "owl", 0.0)]
    try:
        assert served.http.post("/lora-adapters", json=[{"id": 1, "scale": 1.0}]).json()[1]["scale"] == 1.0
        assert text(served) == expected["owl"]
        assert text(served, lora=[]) == expected["tiny"]
        assert text(served, "tiny:fox") == expected["fox"]
    finally:
        assert served.http.post("/lora-adapters", json=[]).status_code == 200
    assert text(served) == expected["tiny"]


def test_different_adapters_in_one_batch(served: RunningServer, expected: dict[str, str]) -> None:
    names = ["tiny", "tiny:fox", "tiny:owl", "tiny:fox"]

    async def ask() -> list[str]:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            answers = [client.post("/v1/completions", json=ASKED | {"model": name}) for name in names]
            return [answer.json()["choices"][0]["text"] for answer in await asyncio.gather(*answers)]

    assert asyncio.run(ask()) == [expected[name.removeprefix("tiny:")] for name in names]


def test_loading_and_unloading(served: RunningServer, expected: dict[str, str], files: dict[str, Path]) -> None:
    loading = {"lora_name": "hen", "lora_path": str(files["c"])}
    assert served.http.post("/v1/load_lora_adapter", json=loading).text.startswith("Success: LoRA adapter 'hen' added")
    twice = served.http.post("/v1/load_lora_adapter", json=loading)
    assert twice.status_code == 400 and "there is an adapter 'hen' already" in twice.text
    assert served.http.post("/v1/load_lora_adapter", json=loading | {"load_inplace": True}).status_code == 200
    assert [model["id"] for model in served.http.get("/v1/models").json()["data"]].count("tiny:hen") == 1
    assert text(served, "hen") == text(served, "tiny:hen") == expected["hen"]
    assert served.http.post("/lora-adapters", json=[{"id": 1, "scale": 1.0}]).status_code == 200
    served.do(lambda: served.pool.unload("tiny"))
    assert text(served, "tiny:hen") == expected["hen"], "it is loaded again with the model"
    assert [one["scale"] for one in served.http.get("/lora-adapters").json()] == [0.0, 1.0, 0.0]
    assert text(served) == expected["owl"], "what was set is kept, too"
    full = served.http.post("/v1/load_lora_adapter", json={"lora_name": "cat", "lora_path": str(files["b"])})
    assert full.status_code == 400 and "all 3 places for adapters are in use" in full.text
    assert served.http.post("/lora-adapters", json=[{"id": 2, "scale": 1.0}]).status_code == 200
    assert served.http.post("/v1/unload_lora_adapter", json={"lora_name": "hen"}).status_code == 200
    assert text(served) == expected["tiny"], "its scale went with it"
    assert served.http.post("/v1/completions", json=ASKED | {"model": "tiny:hen"}).status_code == 404
    gone = served.http.post("/v1/unload_lora_adapter", json={"lora_name": "hen"})
    assert gone.status_code == 404 and "there is no adapter 'hen'" in gone.text
    for path, message in {"/nowhere": "no such adapter", "x" * 5000 + ":0.5": "File name too long"}.items():
        bad = served.http.post("/v1/load_lora_adapter", json={"lora_name": "cat", "lora_path": path})
        assert bad.status_code == 400 and message in bad.text


def test_an_adapter_whose_file_is_gone(
    served: RunningServer, expected: dict[str, str], files: dict[str, Path], tmp_path: Path
) -> None:
    """The model cannot be loaded with it, and so it can be unloaded without the model."""
    file = Path(shutil.copy(files["c"], tmp_path / "cat.gguf"))
    loading = {"lora_name": "cat", "lora_path": str(file)}
    assert served.http.post("/v1/load_lora_adapter", json=loading).status_code == 200
    served.do(lambda: served.pool.unload("tiny"))
    file.unlink()
    answer = served.http.post("/v1/completions", json=ASKED | {"model": "tiny"})
    assert answer.status_code == 500 and "no such adapter" in answer.text
    assert served.http.post("/v1/unload_lora_adapter", json={"lora_name": "cat"}).status_code == 200
    assert text(served, "tiny:fox") == expected["fox"]


def test_a_server_that_does_not_allow_it(files: dict[str, Path]) -> None:
    with running_server(lambda: ModelPool([tiny_source(host="reference", threads=None)])) as running:
        body = {"lora_name": "hen", "lora_path": str(files["c"])}
        answer = running.http.post("/v1/load_lora_adapter", json=body)
        assert answer.status_code == 403 and "--allow-adapters" in answer.text
        answer = running.http.post("/v1/unload_lora_adapter", json={"lora_name": "hen"})
        assert answer.status_code == 403 and "--allow-adapters" in answer.text
        assert running.http.get("/lora-adapters").json() == []
