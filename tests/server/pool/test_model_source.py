"""A model that a server loads with less memory than it was planned with."""

import json
from pathlib import Path

import pytest

import mlxr
from mlxr.runtime.engine.reasoning import Reasoning
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.running_server import EXACT, running_server, tiny_source
from mlxr_tests.storyteller import TINY


def test_a_limit_of_memory_makes_the_arena_smaller() -> None:
    source = tiny_source()
    memory = source.planned_memory()
    limit = (memory.full + memory.least) // 2
    with running_server(lambda: ModelPool([source], memory_bytes=limit)) as server:
        answer = server.http.post("/v1/completions", json={"model": "tiny", "prompt": "Once", "temperature": 0})
        model = server.do(lambda: server.pool.find("tiny"))
        arena = model.loaded.engine.model.arena.geometry
        planned = model.loaded.engine.model.artifact.plan.arena
    assert arena.max_blocks_per_sequence <= arena.num_blocks < planned.num_blocks
    assert memory.full - planned.size_bytes + arena.size_bytes <= limit
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as alone:
        assert answer.json()["choices"][0]["text"] == alone.generate("Once", max_tokens=16).text


def test_reasoning_has_the_budget_that_the_server_was_started_with(tmp_path: Path) -> None:
    (tmp_path / "x.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n")
    source = tiny_source(template=tmp_path / "x.jinja", reasoning=Reasoning(budget=3))
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "temperature": 0, "max_tokens": 30}
    with running_server(lambda: ModelPool([source])) as server:
        own, other = (
            server.http.post("/v1/chat/completions", json=ask | more).json()
            for more in ({}, {"reasoning": {"max_tokens": 0}})
        )
        events = server.http.post("/v1/chat/completions", json=ask | {"stream": True}).text
    message = own["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"]
    assert 0 < own["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 3
    assert other["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in events.splitlines() if line.startswith("data: {")]
    for key in ("reasoning_content", "content"):
        assert "".join(delta.get(key) or "" for delta in deltas) == message[key]


def test_a_load_that_fails_late_leaves_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxr.server.pool import model_source

    closed: list[object] = []
    close = model_source.ServedEngine.close

    def noted(engine: model_source.ServedEngine) -> None:
        closed.append(engine)
        close(engine)

    def broken(*_: object) -> None:
        raise OSError("no process can be started")

    template = tmp_path / "x.jinja"
    template.write_text("x")
    monkeypatch.setattr(model_source.ServedEngine, "close", noted)
    monkeypatch.setattr(model_source, "ChatFormat", broken)
    with pytest.raises(OSError, match="no process"):
        tiny_source(template=template).load(lambda *_: None)
    assert len(closed) == 1
