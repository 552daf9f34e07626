"""Routers that others have made, before servers of ours: what they send, and where they send it.

`pip install -e ".[clients]"` installs the routers.
"""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.api_calls import CHAT
from mlxr_tests.running_server import CHATML, RunningServer, running_server, tiny_source
from mlxr_tests.serve_process import ServeProcess, serve_process, wait_for

ADDED: dict[str, dict[str, Any]] = {
    CHAT.path: {
        **{"logprobs": False, "stream": False, "no_stop_trim": False, "ignore_eos": False},
        **{"continue_final_message": False, "skip_special_tokens": True, "separate_reasoning": True},
        **{"stream_reasoning": True, "return_hidden_states": False, "include_reasoning": True},
    },
    "/v1/completions": {
        **{"stream": False, "echo": False, "no_stop_trim": False, "ignore_eos": False},
        **{"skip_special_tokens": True, "return_hidden_states": False},
    },
    "/v1/responses": {
        **{"store": True, "stream": None, "top_p": 1.0, "priority": 0, "top_k": -1, "min_p": 0.0},
        "repetition_penalty": 1.0,
    },
}
"""What sglang-router 0.3.2 and vllm-router 0.1.17 add to each request, whatever the client has sent."""
ASKED: dict[str, dict[str, Any]] = {
    CHAT.path: {"messages": [{"role": "user", "content": "The fox"}], "max_tokens": 8},
    "/v1/completions": {"prompt": "The fox", "max_tokens": 8},
    "/v1/responses": {"input": "The fox", "max_output_tokens": 8},
}
TAKE_OUT = (
    *("--health-check-endpoint", "/ready", "--health-check-interval-secs", "1", "--health-failure-threshold", "1"),
    *("--cb-failure-threshold", "3"),
)
"""As docs/scaling.md says: a router tries five times, so it finds a server that is not ending."""


@pytest.mark.parametrize("path", list(ADDED))
def test_what_routers_add_changes_nothing(server: RunningServer, path: str) -> None:
    def told(**more: Any) -> str:
        answer = server.http.post(path, json={"model": "tiny", "temperature": 0} | ASKED[path] | more)
        assert answer.status_code == 200, answer.text
        return re.sub(r'"(id|created|created_at)":("[^"]*"|\d+)|"cached_tokens":\d+', "", answer.text)

    assert told(**ADDED[path]) == told()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("no_stop_trim", True, "false"),
        ("skip_special_tokens", False, "true"),
        ("separate_reasoning", False, "true"),
        ("stream_reasoning", False, "true"),
        ("return_hidden_states", True, "false"),
    ],
)
def test_other_values_are_refused(server: RunningServer, name: str, value: bool, expected: str) -> None:
    answer = server.http.post(CHAT.path, json={"model": "tiny"} | ASKED[CHAT.path] | {name: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"{name}: input should be {expected}"


def test_tokens_of_a_conversation_that_goes_on(server: RunningServer) -> None:
    """vllm-router asks for them before each chat."""
    user = {"role": "user", "content": "The fox"}

    def text(messages: list[dict[str, str]], **more: Any) -> str:
        told = server.http.post("/tokenize", json={"model": "tiny", "messages": messages} | more).json()
        written = server.http.post("/detokenize", json={"model": "tiny", "tokens": told["tokens"]}).json()["prompt"]
        return str(written).replace("▁", " ").strip()

    assert text([user], continue_final_message=False) == text([user])
    begun = [user, {"role": "assistant", "content": "said no"}]
    assert text([user], add_generation_prompt=False) == text([user]).removesuffix("<|im_start|>assistant").rstrip()
    assert text(begun, continue_final_message=True).endswith("assistant\nsaid no")
    assert text(begun, continue_final_message="content") == text(begun, continue_final_message=True)


def test_the_name_of_the_only_model(server: RunningServer) -> None:
    """sglang-router tells it at /v1/models, else "unknown"; of several models it would know one only."""
    assert "served_model_name" not in server.http.get("/server_info").json()
    with running_server(lambda: ModelPool([tiny_source("only")])) as single:
        assert single.http.get("/server_info").json()["served_model_name"] == "only"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def router(package: str, servers: list[ServeProcess], folder: Path) -> Iterator[httpx.Client]:
    """A router before these servers, as docs/scaling.md starts it."""
    port, metrics_port = free_port(), free_port()
    command = [sys.executable, "-m", f"{package}.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port), "--policy", "cache_aware"]
    command += ["--worker-urls", *(server.url for server in servers), *TAKE_OUT]
    command += ["--worker-startup-check-interval", "1"]
    with (
        (folder / "router.txt").open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):

        def is_ready() -> bool:
            assert process.poll() is None, (folder / "router.txt").read_text()
            try:
                return bool(http.get("/readiness").json().get("healthy_workers") == len(servers))
            except (httpx.TransportError, json.JSONDecodeError):
                return False

        try:
            wait_for(is_ready)
            yield http
        finally:
            process.kill()


def hits(server: ServeProcess) -> tuple[int, int]:
    """Tokens of prompts that a server has looked for in its prefix cache, and those that it found there."""
    text = server.http.get("/metrics").text
    queries, found = (
        re.search(rf"^vllm:prefix_cache_{name}_total\{{.*\}} (\S+)$", text, re.MULTILINE)
        for name in ("queries", "hits")
    )
    assert queries is not None and found is not None
    return int(float(queries[1])), int(float(found[1]))


class Conversation:
    """A user's conversation, which goes through a router."""

    def __init__(self, http: httpx.Client, about: str) -> None:
        self._http, self._ask = http, f"{about} " * 40
        self.messages: list[dict[str, str]] = []

    def turn(self, most: int = 8, begun: threading.Event | None = None) -> dict[str, Any]:
        """Its usage; `begun` is set once the first token is here."""
        self.messages.append({"role": "user", "content": self._ask})
        body = {"model": "tiny", "messages": self.messages, "max_tokens": most, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = ""
        with self._http.stream("POST", CHAT.path, json=body) as stream:
            assert stream.status_code == 200, stream.read()
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    answer += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
                    usage = chunk.get("usage")
                    if begun is not None:
                        begun.set()
        self.messages.append({"role": "assistant", "content": answer})
        told: dict[str, Any] = usage
        return told


@pytest.mark.long
@pytest.mark.parametrize("package", ["sglang_router", "vllm_router"])
def test_a_chats_second_turn_is_served_from_the_first_ones_cache(package: str, tmp_path: Path) -> None:
    """Two conversations begin on two servers and go on there; when one server ends, its conversation moves."""
    pytest.importorskip(package, reason='the router is not installed: pip install -e ".[clients]"')
    (tmp_path / "chatml.jinja").write_text(CHATML)
    options = ("--template", str(tmp_path / "chatml.jinja"), "--host", "cpu", "--context", "16384", "--force-context")
    with ExitStack() as stack:
        servers = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            servers.append(stack.enter_context(serve_process(tmp_path / name, *options)))
        for server in servers:  # loads the model, so that the turns overlap
            server.http.post("/tokenize", json={"model": "tiny", "prompt": "x"}).raise_for_status()
        http = stack.enter_context(router(package, servers, tmp_path))
        fox, owl = Conversation(http, "fox"), Conversation(http, "an owl in a tree")
        begun, usages = threading.Event(), {}
        long_turn = threading.Thread(target=lambda: usages.update(fox=fox.turn(1500, begun)))
        long_turn.start()
        assert begun.wait(60)
        usages["owl"] = owl.turn()  # meanwhile: the other server has less to do
        long_turn.join(60)
        before = [hits(server) for server in servers]
        assert all(queries > 0 for queries, _ in before), "each has one conversation"
        by_queries = {queries: server for server, (queries, _) in zip(servers, before, strict=True)}
        for name, conversation in (("owl", owl), ("fox", fox)):  # not in turns, as round robin would
            server = by_queries[usages[name]["prompt_tokens"]]
            usage = conversation.turn()
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached >= usages[name]["prompt_tokens"] - 1, "the whole first turn"
            (queries, found), (queries_before, found_before) = hits(server), before[servers.index(server)]
            assert (queries - queries_before, found - found_before) == (usage["prompt_tokens"], cached)
        ending = by_queries[usages["fox"]["prompt_tokens"]]
        ending.signal(signal.SIGTERM)
        assert fox.turn()["completion_tokens"] == 8
        assert ending.exit_code() == 0
        assert fox.turn()["prompt_tokens_details"]["cached_tokens"] > 0
