"""Servers in processes of their own: how they end, and what is left."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlxr.cli import main
from mlxr_tests.serve_process import ServeProcess, serve_process, wait_for

SLOW = ("--host", "reference")
"""Some milliseconds for each token, so that a signal comes in mid-stream."""
PROMPT = "Once upon a time there was a fox who lived in a forest"


def begin(server: ServeProcess, stack: ExitStack, path: str, **body: Any) -> httpx.Response:
    """A stream whose first bytes have come."""
    body = {"model": "tiny", "stream": True} | body
    stream = stack.enter_context(server.http.stream("POST", path, json=body))
    assert stream.status_code == 200
    return stream


@pytest.mark.long
def test_three_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first one ends well, the second one is killed, and the third one has what the first one has saved."""
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    options = (*SLOW, "--kv-disk", "1GiB")
    with serve_process(tmp_path, *options) as first, ExitStack() as stack:
        assert "with context 512, as the model was compiled; the cache takes " in first.first_line
        chunks = begin(first, stack, "/v1/completions", prompt=PROMPT, max_tokens=100, ignore_eos=True).iter_lines()
        next(chunks)
        assert first.http.get("/ready").status_code == 200
        first.signal(signal.SIGTERM)
        wait_for(lambda: first.http.get("/ready").status_code == 503)
        assert first.http.get("/health").status_code == 200
        refused = first.http.post("/v1/completions", json={"model": "tiny", "prompt": "Once"})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
        *_, last, done = [line for line in chunks if line]
        assert done == "data: [DONE]"
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert first.exit_code() == 0
    states = tmp_path / "data/servers"
    assert list(states.iterdir()) == []
    with serve_process(tmp_path, *options) as second:
        saved = cached(second)
        assert saved >= 16
        second.signal(signal.SIGKILL)
        second.exit_code()
    assert len(list(states.iterdir())) == 1
    with serve_process(tmp_path, *options) as third, ExitStack() as stack:
        assert cached(third) == saved
        assert main(["ps", "--json"]) == 0
        assert [row["pid"] for row in json.loads(capsys.readouterr().out)["servers"]] == [third.pid]
        next(begin(third, stack, "/v1/completions", prompt="Once", max_tokens=400, ignore_eos=True).iter_lines())
        third.signal(signal.SIGTERM)
        wait_for(lambda: third.http.get("/ready").status_code == 503)
        third.signal(signal.SIGTERM)  # a second one ends at once
        assert third.exit_code() == 128 + signal.SIGTERM


def cached(server: ServeProcess) -> int:
    """Tokens of the prompt that the server does not compute."""
    answer = server.http.post("/v1/completions", json={"model": "tiny", "prompt": PROMPT, "max_tokens": 1})
    tokens: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_after_the_time_of_grace_streams_end_with_each_apis_own_error(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    options = (*SLOW, "--grace", "0", "--template", str(tmp_path / "chat.jinja"))
    with serve_process(tmp_path, *options) as server, ExitStack() as stack:
        native = {"temperature": 0, "num_predict": 400}
        messages = [{"role": "user", "content": "Once"}]
        streams = {
            '{"error": {"message": ': begin(
                server, stack, "/v1/completions", prompt="Once", max_tokens=400, ignore_eos=True
            ),
            '{"type": "error", "error": {"type": "overloaded_error"': begin(
                server, stack, "/v1/messages", messages=messages, max_tokens=400, temperature=0
            ),
            '{"error": "': begin(server, stack, "/api/generate", prompt="Once", options=native, raw=True),
        }
        lines = {start: stream.iter_lines() for start, stream in streams.items()}
        for each in lines.values():
            next(each)
        server.signal(signal.SIGINT)
        for start, each in lines.items():
            last = [line for line in each if line][-1].removeprefix("data: ")
            assert json.dumps(json.loads(last)).startswith(start), last
        assert server.exit_code() == 0
