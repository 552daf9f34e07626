"""Published chat templates: what their models write comes out as llama.cpp reads it, and to every client."""

import json
from pathlib import Path

import pytest

from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.counted_chats import counted, table, template_files
from mlxr_tests.form_clients import CLIENTS, writing
from mlxr_tests.judged_chats import SpokenModel
from mlxr_tests.real_files import LLAMA_CPP_CHATS, real_folder
from mlxr_tests.running_server import running_server, tiny_source
from mlxr_tests.tried_forms import TriedForm

DOCS = Path(__file__).parents[2] / "docs/CHAT.md"


@pytest.mark.long
def test_where_it_stands_is_where_the_docs_say() -> None:
    """`tests/server/chat/count_outside_cases.py --markdown` prints what is to be written there."""
    told = table(list(counted(real_folder(LLAMA_CPP_CHATS), num_cuts=3)))
    assert told in DOCS.read_text(), told


@pytest.mark.long
def test_every_client_gets_what_each_template_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, tried = dict[str, list[object]](), 0
    for path in template_files(real_folder(LLAMA_CPP_CHATS)):
        with SpokenModel(path.read_text()) as model:
            richest = TriedForm(model).richest() if model.format.takes_tools else None
        if richest is None:
            continue  # the template does not write calls, or nothing that its own prompt begins
        tried += 1
        message, text = richest
        calls = [(each["function"]["name"], each["function"]["arguments"]) for each in message["tool_calls"]]
        expected = (message["content"], message.get("reasoning_content", ""), calls)
        with monkeypatch.context() as patch:
            patch.setattr(EngineThread, "generate", writing(text.answer))
            with running_server(lambda: ModelPool([tiny_source("m", template=path)])) as server:  # noqa: B023
                for client in CLIENTS:
                    for stream in (False, True):
                        got = client(server, stream)
                        told = [(name, json.loads(arguments)) for name, arguments in got.calls]
                        if (got.content.strip(), got.reasoning.strip(), told) != expected:
                            wrong.setdefault(path.stem, []).append((client.__name__, stream, got, expected))
    assert not wrong and tried > 50
