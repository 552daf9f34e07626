"""GET /requests: the newest requests, why each was slow, and the launches furthest from their roofline."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from mlxr.runtime.engine.time_spent import TimeSpent
from mlxr.runtime.hosts.cpu.timed_calls import TimedCalls
from mlxr.server.inspector.far_launches import far_launches
from mlxr.server.inspector.inspector import Inspector
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.recent_requests import RecentRequests
from mlxr.server.request_log import fields_of
from mlxr.server.request_record import RequestRecord
from mlxr.server.request_times import ALL_CAUSES, divided
from mlxr.server.settings import ServerSettings
from mlxr_tests.running_server import RunningServer, running_server, tiny_source
from mlxr_tests.storyteller import ROOT

PAUSE = 1.5
"""Seconds that a staged cause lasts, more than all else of a small request; nothing is compared with a clock."""


def ask(server: RunningServer, **fields: Any) -> dict[str, Any]:
    """Sends a request; returns what is told of it."""
    body = {"model": "tiny", "prompt": "the fox", "max_tokens": 2, "ignore_eos": True} | fields
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return told(server, answer.headers["x-request-id"])


def told(server: RunningServer, name: str) -> dict[str, Any]:
    until = time.monotonic() + 30
    while (answer := server.http.get(f"/requests/{name}")).status_code == 404 and time.monotonic() < until:
        time.sleep(0.01)  # the client has the answer before the server has ended with the request
    found = answer.json()
    assert answer.status_code == 200 and sum(found["spent_ms"].values()) == pytest.approx(found["ms"], abs=0.1)
    assert found["slowest"] == max(found["spent_ms"], key=found["spent_ms"].get)
    assert found["why"] == ALL_CAUSES[found["slowest"]]
    return dict(found)


def slow(action: Callable[..., Any]) -> Callable[..., Any]:
    """The same, after a pause."""

    def paused(*arguments: Any, **options: Any) -> Any:
        time.sleep(PAUSE)
        return action(*arguments, **options)

    return paused


def test_a_model_that_is_loaded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxr.server.pool.model_source.ServedEngine", slow(_engine()))
    with running_server(lambda: ModelPool([tiny_source()])) as server:
        assert ask(server)["slowest"] == "loading"
        assert "loading" not in list(ask(server)["spent_ms"])[:1]


def _engine() -> Callable[..., Any]:
    from mlxr.server.pool.served_engine import ServedEngine

    return ServedEngine


@pytest.mark.long
def test_a_template_a_grammar_and_a_mask_that_take_long(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(server)  # which loads it
    model = server.do(lambda: server.pool.find("tiny").loaded).engine.model
    with monkeypatch.context() as patch:
        patch.setattr(model, "encode", slow(model.encode))
        assert ask(server)["slowest"] == "preparing"
    form: Any = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}}}
    with monkeypatch.context() as patch:
        patch.setattr(model._maker._constraints, "compile", slow(model._maker._constraints.compile))
        assert ask(server, **form)["slowest"] == "grammar"
    with monkeypatch.context() as patch:
        patch.setattr(
            "mlxr.runtime.engine.constraint.constraint.Constraint.masks",
            slow(_masks()),
        )
        assert ask(server, **form, max_tokens=1)["slowest"] == "mask"


def _masks() -> Callable[..., Any]:
    from mlxr.runtime.engine.constraint.constraint import Constraint

    return Constraint.masks


def test_a_client_that_takes_its_answer_late() -> None:
    """By the record: a connection's buffers are larger than any answer of a small model."""
    record = RequestRecord("POST", "/v1/completions", request_id="r", model="tiny", begin=10.0, loading=1.0)
    record.spent, record.ended = TimeSpent({"queue": 0.5, "decode": 0.25, "grammar": 0.25}), 13.0
    parts = divided(record, 8.0)
    assert next(iter(parts)) == "sending" and parts == {
        "sending": 5.0, "loading": 1.0, "preparing": 1.0, "queue": 0.5, "decode": 0.25, "grammar": 0.25
    }  # fmt: skip
    record.ended = 11.9  # an event's time is that of its step
    assert divided(record, 8.0) == {"sending": 6.0, "loading": 1.0, "queue": 0.5, "decode": 0.25, "grammar": 0.25}
    record.spent = None
    assert divided(record, 8.0) == {"preparing": 7.0, "loading": 1.0}


def test_a_prompt_that_changed(server: RunningServer) -> None:
    before, after = [5 + i % 90 for i in range(200)], [5 + i % 90 for i in range(200)]
    after[7] = 300
    ask(server, prompt=before)
    found = ask(server, prompt=after)
    assert (found["missed_tokens"], found["differs_at"], found["cached_tokens"]) == (193, 7, 7)
    again = ask(server, prompt=after)
    assert (again["missed_tokens"], again["differs_at"]) == (1, None)


def test_embeddings_too(server: RunningServer) -> None:
    answer = server.http.post("/v1/embeddings", json={"model": "tiny", "input": [[5] * 300, [6] * 300]})
    found = told(server, answer.headers["x-request-id"])
    assert found["spent_ms"].keys() >= {"prompt"} and found["missed_tokens"] == 300


def test_the_list_has_the_newest_first_and_no_texts(server: RunningServer) -> None:
    names = [ask(server, prompt=f"a secret {number}")["request_id"] for number in range(3)]
    answer = server.http.get("/requests", params={"limit": 3, "model": "tiny"})
    assert [told["request_id"] for told in answer.json()["requests"]] == names[::-1]
    assert "secret" not in answer.text
    assert server.http.get("/requests", params={"model": "none"}).json() == {"requests": []}
    gone = server.http.get("/requests/none")
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "not_found"
    assert server.http.get("/requests", params={"limit": 0}).status_code == 400


def test_each_key_sees_its_own_requests() -> None:
    settings = ServerSettings(api_keys=("one", "two"))
    with running_server(lambda: ModelPool([tiny_source()]), settings) as server:
        mine, others = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
        name = server.http.post("/v1/completions", json=body, headers=mine).headers["x-request-id"]
        until = time.monotonic() + 30
        while not (found := server.http.get("/requests", headers=mine).json()["requests"]):
            assert time.monotonic() < until
        assert found[0]["request_id"] == name
        assert server.http.get("/requests", headers=others).json() == {"requests": []}
        assert server.http.get(f"/requests/{name}", headers=others).status_code == 404


def test_the_page_of_the_server_has_all_causes() -> None:
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    assert all(f"| `{cause}` | {words} |" in page for cause, words in ALL_CAUSES.items())


def test_only_the_newest_are_kept() -> None:
    recent = RecentRequests()
    for number in range(600):
        recent.add("", {"request_id": f"r{number}", "model": "m", "body": "text"})
    kept = recent.newest("", 1000)
    assert len(kept) == 512 and kept[0]["request_id"] == "r599" and "body" not in kept[0]
    recent.add("", {"request_id": "r300", "model": "other"})
    assert recent.newest("", 1)[0]["model"] == "other" and len(recent.newest("", 1000)) == 512


def test_tokens_that_differ_are_told_where_texts_are() -> None:
    record = RequestRecord("POST", "/", request_id="r", model="tiny")
    record.spent = TimeSpent({"prompt": 1.0}, 5, 3, (17, 18))
    assert "differing_tokens" not in fields_of(record)
    record.keeps_text = True
    assert fields_of(record)["differing_tokens"] == [17, 18]
    logging.getLogger("mlxr")  # nothing is logged here


def test_the_launches_that_are_furthest_from_their_roofline(server: RunningServer) -> None:
    """Of host cpu: all calls as fast as their bytes allow, but one kind."""
    assert told(server, ask(server)["request_id"])["launches"] == [], "none were timed"
    model = server.do(lambda: server.pool.find("tiny").loaded).engine.model
    inspector = Inspector(model.artifact)
    rows = [row for row in inspector.calls if row.phase == "decode"]
    down = [row.index for row in rows if row.launch.op.endswith("mlp.out")]
    assert len(down) == 2
    from mlxr.inspect.roofline import call_works

    works = call_works(model.artifact, "cpu", rows, inspector.dims("decode"))
    times = tuple(works[i].size_bytes / 1000 * (4 if i in down else 1) if i in works else 0.0 for i in range(len(rows)))
    far = far_launches(inspector, {"decode": TimedCalls("1 sequence", 1, times)})
    assert (far[0].op, far[0].times, far[0].phase) == ("mlp.out", 2, "decode")
    assert far[0].share_of_limit == pytest.approx(0.25) and far[0].lost_us > 0
    assert json.loads(far[0].model_dump_json())["kernel"] == rows[down[0]].launch.kernel
