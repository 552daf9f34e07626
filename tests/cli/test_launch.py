"""`mlxr launch`: agents get what they need for one process, servers that it starts end with them, others stay."""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from mlxr.cli import launch, main
from mlxr.cli.agents import AGENTS, Served
from mlxr.loading.options import LoadOptions
from mlxr.server.anthropic import messages
from mlxr.server.chat.answer import AnswerEvent
from mlxr.server.chat.delta import ContentDelta, Delta, ToolArguments, ToolStart
from mlxr.server.life.control import AnswerError
from mlxr.server.life.state_file import running_servers
from mlxr.server.openai import chat, responses
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.model_source import ModelSource
from mlxr_tests.running_server import running_server
from mlxr_tests.scripted_answer import answering
from mlxr_tests.storyteller import ROOT, TINY
from mlxr_tests.talker import CONTEXT, write_talker

STAND_IN = """#!{python}
import json, os, subprocess, sys, urllib.request
base, key = os.environ["OPENAI_API_BASE"], os.environ["OPENAI_API_KEY"]
request = urllib.request.Request(base + "/models", headers={{"Authorization": "Bearer " + key}})
models = json.load(urllib.request.urlopen(request))
told = {{"arguments": sys.argv[1:], "models": [model["id"] for model in models["data"]], "base": base}}
told["known"] = json.load(open(sys.argv[sys.argv.index("--model-metadata-file") + 1]))
if "again" in sys.argv:  # another agent that uses the same server, and leaves first
    subprocess.run([{python!r}, "-m", "mlxr.cli", "launch", "aider", "--", "inner"], check=False)
    told["still"] = urllib.request.urlopen(request).status
open({folder!r} + ("/inner.json" if "inner" in sys.argv else "/told.json"), "w").write(json.dumps(told))
sys.exit(3)
"""
REAL = {
    "claude": (["-p", "Say hi", "--output-format", "json"], ["-p", "--continue", "Go on", "--output-format", "json"]),
    "codex": (
        ["exec", "--skip-git-repo-check", "Say hi"],
        ["exec", "--skip-git-repo-check", "resume", "--last", "Go on"],
    ),
    "opencode": (["run", "Say hi"], ["run", "--continue", "Go on"]),
    "pi": (["--offline", "-p", "Say hi"], ["--offline", "--continue", "-p", "Go on"]),
    "qwen": (["-p", "Say hi"], ["--continue", "-p", "Go on"]),
    "aider": (["--yes-always", "--no-git", "--no-check-update", "--message", "Say hi"],) * 2,
}
"""What real agents are asked, in two turns, without a terminal."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home and the path of a user who has one agent, a stand-in."""
    monkeypatch.setenv("MLXR_CACHE_DIR", os.environ.get("MLXR_CACHE_DIR", str(Path.home() / ".cache/mlxr")))
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")  # a compiler's, too
    for name in ("home", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin/aider").write_text(STAND_IN.format(python=sys.executable, folder=str(tmp_path)))
    (tmp_path / "bin/aider").chmod(0o755)
    return tmp_path


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_talker(tmp_path_factory.mktemp("model") / "talker.gguf")


def test_an_agent_that_is_not_installed(
    folder: Path, talker: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder / "bin"))
    for name, install in (("codex", "npm install -g @openai/codex"), ("claude", "npm install -g @anthropic-ai/claude")):
        assert main(["launch", name, str(talker)]) == 1
        assert f"error: {name} is not installed, or not on the path: {install}" in capsys.readouterr().err
    assert main(["launch", "aider"]) == 1
    assert "no model was given, no server is running, and no model is registered" in capsys.readouterr().err
    assert not running_servers()


@pytest.mark.parametrize("name", AGENTS)
def test_what_would_be_done_is_printed(
    folder: Path, talker: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["launch", name, str(talker), "--print", "--context", "40000", "--", "-p", "a b"]) == 0
    serve, *lines, command = capsys.readouterr().out.splitlines()
    assert shlex.split(serve)[:5] == ["mlxr", "serve", str(talker), "--port", "8080"] and "--context 40000" in serve
    words = shlex.split(command)
    assert words[0] == AGENTS[name].program and words[-2:] == ["-p", "a b"]
    text = "\n".join([*lines, command])
    assert "talker" in text and "40000" in text and "http://127.0.0.1:8080" in text
    assert not running_servers() and not list((folder / "home").iterdir())


def test_options_of_codex_are_toml(folder: Path, talker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "codex", str(talker), "--print"]) == 0
    *_, key, command = capsys.readouterr().out.splitlines()
    assert key == "export MLXR_API_KEY=mlxr"
    words = shlex.split(command)
    config = tomllib.loads("\n".join(word for word in words[1:] if word != "-c"))
    assert (config["model"], config["model_context_window"]) == ("talker", 65536)
    provider = config["model_providers"][config["model_provider"]]
    assert provider["base_url"].endswith(":8080/v1") and provider["wire_api"] == "responses"
    assert provider["env_key"] == "MLXR_API_KEY"


def test_a_server_ends_with_the_last_agent_that_uses_it(
    folder: Path, talker: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The agent launches another one, which uses the same server, and leaves it running."""
    assert main(["launch", "aider", str(talker), "--host", "cpu", "--", "--yes", "again"]) == 3, "the agent's exit code"
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    inner: dict[str, Any] = json.loads((folder / "inner.json").read_text())
    assert told["models"] == ["talker"] and told["arguments"][-2:] == ["--yes", "again"] and told["still"] == 200
    assert told["known"]["openai/talker"]["max_input_tokens"] == 65536
    assert inner["base"] == told["base"], "the only model of the server that runs"
    assert not running_servers() and not list((folder / "home").iterdir())
    assert not list((folder / "data/servers").glob("*.shared"))
    said = capfd.readouterr().err
    assert (
        "aider uses talker at http://127.0.0.1:" in said and "a server that ends with the agent: context 65,536" in said
    )


@pytest.mark.long
def test_a_server_that_runs_is_used_and_stays(folder: Path, talker: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys = folder / "keys"
    keys.write_text("secret")
    words = write_talker(folder / "words.gguf", "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}")
    serve = ["serve", str(talker), str(words), "--model", f"tiny={TINY}", "--host", "cpu", "--port", "0"]
    serve += ["--context", "512"]
    assert main([*serve, "--api-key-file", str(keys), "--detach"]) == 0
    try:
        assert main(["launch", "aider"]) == 1
        assert "there are several models: name one: talker, tiny, words" in capfd.readouterr().err
        assert main(["launch", "aider", "tiny"]) == 1
        assert "tiny has no chat template: an agent needs a model that was made to chat" in capfd.readouterr().err
        assert main(["launch", "aider", "talker", "--context", "2048"]) == 3
        (server,) = running_servers()
        told = json.loads((folder / "told.json").read_text())
        assert told["base"] == f"{server.url}/v1" and told["known"]["openai/talker"]["max_input_tokens"] == 2048
        said = capfd.readouterr().err
        assert "a server that goes on: context 2,048" in said and "note: a coding agent's own instructions" in said
        assert main(["launch", "aider", "words", "--context", "512"]) == 3
        assert (
            "note: the chat template of words has no tools: the model is told of them in words"
            in capfd.readouterr().err
        )
    finally:
        assert main(["stop", "--all"]) == 0


def test_without_room_for_the_context_memory_decides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started, ended = [], []

    def start_shared(arguments: list[str]) -> str:
        started.append(arguments)
        return f"server {len(started)}"

    @contextmanager
    def using(state: str) -> Iterator[None]:
        yield
        ended.append(state)

    def load(state: str, name: str, context: int | None) -> None:
        if "--context" in started[-1]:
            raise AnswerError("it takes 9 GiB of memory", 503)

    for name, stand_in in {"start_shared": start_shared, "using": using, "_load": load}.items():
        monkeypatch.setattr(launch, name, stand_in)
    args = argparse.Namespace(context=None, port=None, host="auto", kv="q8")
    with ExitStack() as stack:
        assert cast(Any, launch._started(args, "m.gguf", "m", 65536, stack)) == "server 2"
        assert ended == ["server 1"], "the second one goes on"
    rest = ["m.gguf", "--port", "0", "--keep-alive", "forever"]
    assert started == [[*rest, "--context", "65536", "--kv", "q8"], [*rest, "--kv", "q8"]]
    assert "note: no room for a context of 65,536: it takes 9 GiB of memory" in capsys.readouterr().err
    args.context = 65536
    with ExitStack() as stack, pytest.raises(AnswerError):
        launch._started(args, "m.gguf", "m", 65536, stack)


CALLS = {
    "claude": (
        ("ToolSearch", {"query": "select:WebFetch", "max_results": 1}),
        ("Bash", {"command": "echo $((6 * 7)) | tee FOLDER/out.txt"}),
    ),
    "codex": (("exec_command", {"cmd": "echo $((6 * 7)) | tee FOLDER/out.txt"}),),
    "opencode": (("bash", {"command": "echo $((6 * 7)) | tee FOLDER/out.txt", "description": "x"}),),
    "pi": (("bash", {"command": "echo $((6 * 7)) | tee FOLDER/out.txt"}),),
    "qwen": (("run_shell_command", {"command": "echo $((6 * 7)) | tee FOLDER/out.txt", "is_background": False}),),
}
"""What an agent is told to call, one after the other; FOLDER is the test's own."""
ALLOWED = {
    "claude": ["-p", "--allowedTools", "Bash", "--", "Say hi"],
    "codex": ["exec", "--skip-git-repo-check", "-s", "danger-full-access", "Say hi"],
    "opencode": ["run", "Say hi"],
    "pi": ["--offline", "-p", "Say hi"],
    "qwen": ["--yolo", "-p", "Say hi"],
}
"""How it runs these without asking."""


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
def test_real_agents_call_tools(tmp_path: Path, talker: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A script in the model's place calls tools of each agent that is installed; their results come back to it."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: {AGENTS[name].install}")
    results: list[str] = []

    async def scripted(model: Any, job: Any, **options: Any) -> AsyncGenerator[AnswerEvent]:
        called = [call["function"]["name"] for message in job.messages for call in message.get("tool_calls", ())]
        results[:] = [message["content"] for message in job.messages if message["role"] == "tool"]
        script: list[list[Delta]] = [[ContentDelta("All is done.")]]
        for tool, arguments in CALLS[name]:
            if tool in job.tool_names and tool not in called:
                call = f"call_{len(called)}"
                script = [
                    [ContentDelta("I call it.")],
                    [ToolStart(0, call, tool)],
                    [ToolArguments(0, json.dumps(arguments).replace("FOLDER", str(tmp_path)))],
                ]
                break
        async for piece in answering(script)(model, job, **options):
            yield piece

    for api in (messages, chat, responses):
        monkeypatch.setattr(api, "answer", scripted)
    for folder in ("work", "home", "files"):
        (tmp_path / folder).mkdir()
    with running_server(lambda: ModelPool([ModelSource("talker", str(talker), LoadOptions(host="cpu"))])) as server:
        start = AGENTS[name].start(Served(server.url, "none", "talker", CONTEXT), tmp_path / "files")
        for file, text in start.files.items():
            (tmp_path / "files" / file).write_text(text)
        environment = launch._environment(start.variables) | {"HOME": str(tmp_path / "home"), "IS_SANDBOX": "1"}
        environment["PWD"] = str(tmp_path / "work")  # opencode goes there
        words = [name, *start.arguments, *ALLOWED[name]]
        options: dict[str, Any] = {"env": environment, "cwd": tmp_path / "work", "stdin": subprocess.DEVNULL}
        told = subprocess.run(words, check=True, timeout=300, capture_output=True, text=True, **options)
    assert "All is done." in told.stdout, told
    assert (tmp_path / "out.txt").read_text() == "42\n"
    assert len(results) == len(CALLS[name]) and ("42" in results[-1] or name == "qwen"), (
        "Qwen Code may miss what it says"
    )
    assert name != "claude" or results[0] == "WebFetch is among the tools now."


@pytest.mark.long
@pytest.mark.parametrize("name", AGENTS)
def test_real_agents(tmp_path: Path, talker: Path, name: str) -> None:
    """Two turns of each agent that is installed: no request is refused, and the second turn's prompt is cached."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: {AGENTS[name].install}")
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    environment = os.environ | {"MLXR_DATA_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    environment |= {"HOME": str(tmp_path / "home"), "PWD": str(tmp_path / "work")}
    mlxr = [sys.executable, "-m", "mlxr.cli"]
    options: dict[str, Any] = {
        "env": environment,
        "cwd": tmp_path / "work",
        "stdin": subprocess.DEVNULL,
        "timeout": 300,
    }
    log = tmp_path / "log"
    serve = [*mlxr, "serve", str(talker), "--port", "0", "--host", "cpu", "--log-file", str(log), "--detach"]
    subprocess.run(serve, check=True, **options)
    try:
        for arguments in REAL[name]:
            subprocess.run([*mlxr, "launch", name, "--context", str(CONTEXT), "--", *arguments], check=True, **options)
    finally:
        subprocess.run([*mlxr, "stop"], check=True, **options)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    answers = [line for line in lines if line.get("method") == "POST" and line["path"].startswith("/v1/")]
    refused = [line for line in lines if line.get("status", 0) >= 400]
    assert not refused and len(answers) >= 2, f"{len(refused)} of {len(answers)} requests were refused: {refused[:1]}"
    last = max(answers[len(answers) // 2 :], key=lambda line: line["prompt_tokens"])
    assert last["cached_tokens"] > 0.7 * last["prompt_tokens"], answers
