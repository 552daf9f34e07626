"""Responses that are kept, and requests that go on from them."""

import json
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from mlxr.compiler.errors import RequestError
from mlxr.server.errors import ApiError
from mlxr.server.openai import responses
from mlxr.server.openai.kept_responses import KeptResponses, owner_of
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.settings import ServerSettings
from mlxr_tests.running_server import CHATML, RunningServer, running_server, tiny_source
from mlxr_tests.scripted_answer import scripted_answer

ASK: dict[str, Any] = {"model": "tiny", "instructions": "Be brief.", "max_output_tokens": 12, "extra_body": {"seed": 7}}
FIRST, SECOND, THIRD = "Hello there", "And then?", "And then?!"


def _client(server: RunningServer, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with _client(server) as made:
        yield made


def test_a_request_goes_on_from_a_response(client: openai.OpenAI) -> None:
    first = client.responses.create(**ASK, input=FIRST, metadata={"a": "b"})
    *_, end = client.responses.create(**ASK, input=SECOND, previous_response_id=first.id, stream=True)
    assert end.type == "response.incomplete"
    second = end.response
    third = client.responses.create(**ASK, input=[{"role": "user", "content": THIRD}], previous_response_id=second.id)
    assert third.previous_response_id == second.id and second.previous_response_id == first.id
    whole: list[Any] = [
        {"role": "user", "content": FIRST},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": SECOND},
        *[item.to_dict() for item in second.output],
        {"role": "user", "content": THIRD},
    ]
    again = client.responses.create(**ASK, input=whole, store=False)
    assert again.output_text == third.output_text and again.usage is not None and third.usage is not None
    assert again.usage.input_tokens == third.usage.input_tokens
    counted = client.responses.input_tokens.count(
        model="tiny", instructions="Be brief.", input=THIRD, previous_response_id=second.id
    )
    assert counted.input_tokens == third.usage.input_tokens and counted.object == "response.input_tokens"
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict() and first.to_dict()["store"] is True
    listed = list(client.responses.input_items.list(third.id, order="asc", limit=2))
    texts = [item.to_dict()["content"][0]["text"] for item in listed]  # type: ignore[index] # of all pages
    assert texts == [FIRST, first.output_text, SECOND, second.output_text, THIRD]
    assert [item.id for item in client.responses.input_items.list(third.id)] == [item.id for item in listed][::-1]


def test_what_is_not_kept_cannot_be_used(client: openai.OpenAI) -> None:
    first = client.responses.create(**ASK, input=FIRST, store=False)
    assert first.to_dict()["store"] is False
    for name in (first.id, "resp_1", ""):
        with pytest.raises(openai.NotFoundError, match="it was not kept, or is no longer") as raised:
            client.responses.create(**ASK, input=SECOND, previous_response_id=name)
        assert raised.value.code == "previous_response_not_found"
    kept = client.responses.create(**ASK, input=FIRST)
    later = client.responses.create(**ASK, input=SECOND, previous_response_id=kept.id)
    client.responses.delete(kept.id)
    for use in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            use(kept.id)
    with pytest.raises(openai.NotFoundError, match=kept.id):
        client.responses.create(**ASK, input=THIRD, previous_response_id=later.id)
    with pytest.raises(openai.BadRequestError, match="only responses that have ended are kept"):
        list(client.responses.retrieve(later.id, stream=True))


def test_items_are_named_by_clients(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "answer", scripted_answer)
    first = client.responses.create(**ASK, input=FIRST)
    named: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": call, "output": "x"} for call in ("call_a", "call_b")
    ]
    user: Any = {"role": "user", "content": FIRST}
    forms: list[tuple[list[Any], dict[str, Any]]] = [
        ([user, *[item.to_dict() for item in first.output], *outputs], {}),
        ([user, *named, *outputs], {}),
        ([user, *[{"id": item["id"]} for item in named], *outputs], {}),
        (outputs, {"previous_response_id": first.id}),
    ]
    counts = {
        client.responses.input_tokens.count(model="tools", input=items, **more).input_tokens for items, more in forms
    }
    assert len(counts) == 1
    with pytest.raises(openai.NotFoundError, match="there is no item 'msg_1' here"):
        client.responses.create(**ASK, input=[{"type": "item_reference", "id": "msg_1"}])


def test_a_file_keeps_them_and_keys_keep_them_apart(tmp_path: Path) -> None:
    (tmp_path / "chatml.jinja").write_text(CHATML)
    path = tmp_path / "kept.db"
    settings = ServerSettings(api_keys=("one", "two"), responses_file=path)
    names: list[str] = []
    for _ in range(2):
        with running_server(lambda: ModelPool([tiny_source(template=tmp_path / "chatml.jinja")]), settings) as running:
            one, two = _client(running, "one"), _client(running, "two")
            for name in names:
                assert one.responses.retrieve(name).id == name
            names.append(one.responses.create(**ASK, input=FIRST, previous_response_id=[None, *names][-1]).id)
            for use in (two.responses.retrieve, two.responses.delete):
                with pytest.raises(openai.NotFoundError):
                    use(names[-1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_server_that_keeps_none_says_so(tmp_path: Path) -> None:
    (tmp_path / "chatml.jinja").write_text(CHATML)
    source = tiny_source(template=tmp_path / "chatml.jinja")
    with running_server(lambda: ModelPool([source]), ServerSettings(responses_bytes=0)) as running:
        told = _client(running).responses.create(**ASK, input=FIRST, store=True).to_dict()
        assert told["store"] is False
        assert told["warnings"] == ["store is without effect: this server was started with --keep-responses 0"]
        assert "warnings" not in _client(running).responses.create(**ASK, input=FIRST).to_dict()


def _response(number: int, previous: int | None = None) -> dict[str, Any]:
    name = f"resp_{previous}" if previous is not None else None
    return {"id": f"resp_{number}", "previous_response_id": name, "output": [{"id": f"msg_{number}", "text": "x" * 50}]}


def test_those_go_that_were_not_used_for_longest() -> None:
    kept = KeptResponses(4 * (len(json.dumps(_response(1, 0))) + len("[]")))
    for number in range(3):
        assert kept.save(_response(number, number - 1 if number else None), [], "")
    kept.save(_response(3), [], "")
    assert [item["id"] for item in kept.conversation("resp_2", "")] == ["msg_0", "msg_1", "msg_2"]
    kept.save(_response(4), [], "")  # 3 goes: the chain was used after it
    assert kept.response("resp_0", "") and kept.response("resp_4", "")
    with pytest.raises(ApiError):
        kept.response("resp_3", "")
    assert not kept.save({**_response(5), "more": "x" * kept.most_bytes}, [], "")
    with pytest.raises(ApiError):
        kept.response("resp_4", owner_of("key"))
    kept.close()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    other, text = tmp_path / "other.db", tmp_path / "text.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE own (x)")
    text.write_text("no database at all, but a text that someone wants to keep\n" * 40)
    for path, reason in ((other, "of another program"), (text, "not a database"), (tmp_path / "no/x.db", "No such")):
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(RequestError, match=reason):
            KeptResponses(100, path)
        assert (path.read_bytes() if path.exists() else None) == before
