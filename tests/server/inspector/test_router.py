"""The inspector's routes: what is asked of which model; the records themselves are tested beside this."""

import time
from typing import Any

import pytest

from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.running_server import RunningServer, running_server, tiny_source
from mlxr_tests.storyteller import TINY


@pytest.fixture(scope="module")
def other() -> Any:
    with running_server(lambda: ModelPool([tiny_source("a"), tiny_source("b", prompt_lookup=True)])) as running:
        yield running


def get(server: RunningServer, path: str, **query: Any) -> Any:
    answer = server.http.get(f"/inspector/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_model_is_looked_at_once_it_is_loaded(other: RunningServer) -> None:
    while None in {model["can_chat"] for model in get(other, "models")}:
        time.sleep(0.05)  # until their files were read
    cold = get(other, "models")
    assert [(model["name"], model["state"], model["can_chat"]) for model in cold] == [
        ("a", "cold", False),
        ("b", "cold", False),
    ], "its files say so before it is loaded"
    facts = cold[0]["facts"]
    assert facts["size_bytes"] == TINY.stat().st_size and facts["quantization"] == "Q8_0" and facts["format"] == "gguf"
    refused = other.http.get("/inspector/graphs", params={"model": "a"})
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "not_loaded"
    assert get(other, "models")[0]["state"] == "cold", "looking loads nothing"
    loaded = other.http.post("/inspector/load", params={"model": "a"}).json()
    assert loaded["state"] == "loaded" and loaded["can_chat"] is False and loaded["context"] > 0 and loaded["no_chat"]

    graphs = get(other, "graphs", model="a")
    assert [graph["name"] for graph in graphs["graphs"]] == ["source", "decode", "prefill"]
    node = graphs["graphs"][1]["nodes"][1]
    op = get(other, "op", model="a", graph="decode", name=node["id"], chip="m4-max")
    metal, c = (next(launch for launch in op["launches"] if launch["target"] == target) for target in ("metal", "cpu"))
    assert metal["prediction"]["chip"] == "Apple M4 Max" and metal["launched"] is None
    assert get(other, "op", model="a", graph="decode", name=node["id"])["launches"][0]["prediction"] is None
    other.http.post("/v1/completions", json={"model": "a", "prompt": "Once", "max_tokens": 3}).raise_for_status()
    again = get(other, "op", model="a", graph="decode", name=node["id"])["launches"]
    assert max(launch["launched"] for launch in again if launch["target"] == "cpu") > 0
    assert c["kernel"] in get(other, "kernel", model="a", target="cpu", name=c["kernel"])["source"]

    arena = get(other, "arena", model="a")
    (group,) = arena["groups"]
    assert group["num_blocks"] == len(group["states"]) and group["cached"] >= 0 and arena["slots"] is None
    generated, until = 0, time.monotonic() + 30
    while generated < 3 and time.monotonic() < until:
        time.sleep(0.1)  # until the next sample: the last one may have been taken amid the answer
        samples = get(other, "history", model="a", since=0)["samples"]
        generated = round(sum(sample["generated_per_second"] * sample["seconds"] for sample in samples))
    assert generated == 3, "since it was loaded, although nobody looked at it then"
    assert get(other, "models")[1]["state"] == "cold"


def test_a_model_is_unloaded_unless_it_is_in_use_or_pinned(other: RunningServer) -> None:
    other.http.post("/inspector/load", params={"model": "a"}).raise_for_status()
    served = other.do(lambda: other.pool.find("a"))
    for attribute, value, code in (("users", 1, "in_use"), ("pinned", True, "pinned")):
        before = getattr(served, attribute)
        setattr(served, attribute, value)
        refused = other.http.post("/inspector/unload", params={"model": "a"})
        setattr(served, attribute, before)
        assert refused.status_code == 409 and refused.json()["error"]["code"] == code
        assert get(other, "models")[0]["state"] == "loaded"
    assert other.http.post("/inspector/unload", params={"model": "a"}).json()[0]["state"] == "cold"


def test_two_models(other: RunningServer) -> None:
    for name in "ab":
        other.http.post("/inspector/load", params={"model": name}).raise_for_status()
    assert get(other, "diff", a="a", b="b")["same"] is True


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        ("op", {"graph": "decode", "name": "none"}, "has no op 'none'"),
        ("op", {"graph": "none", "name": "none"}, "there is no graph 'none'"),
        ("op", {"graph": "decode", "name": "none", "chip": "m4maxx"}, "there is no chip 'm4maxx'"),
        ("kernel", {"target": "metal", "name": "none"}, "none"),
        ("kernel", {"target": "none", "name": "none"}, "none"),
        ("arena", {"model": "x"}, "there is no model 'x'"),
        ("diff", {"a": "a", "b": "x"}, "there is no model 'x'"),
    ],
)
def test_what_is_not_there(other: RunningServer, path: str, query: dict[str, str], message: str) -> None:
    other.http.post("/inspector/load", params={"model": "a"}).raise_for_status()
    answer = other.http.get(f"/inspector/{path}", params={"model": "a"} | query)
    assert answer.status_code == 404 and message in answer.json()["error"]["message"]


def test_chips_have_figures(other: RunningServer) -> None:
    chips = {chip["name"]: chip["title"] for chip in get(other, "chips")}
    assert chips["m4-max"] == "Apple M4 Max" and "generic" not in chips
