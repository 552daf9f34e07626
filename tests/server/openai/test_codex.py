"""The Codex command line, if it is installed, does a task in two turns with a tool, told by a script what to do.

The script stands in the place of a model: here the protocol is tried. `npm install @openai/codex` somewhere, and set
`MLXR_CODEX` to its `codex`, or have it on the path.
"""

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxr.server.chat.answer import AnswerEvent
from mlxr.server.chat.delta import ContentDelta, ReasoningDelta, ToolArguments, ToolStart
from mlxr.server.openai import responses
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.running_server import EXACT, HERMES, RunningServer, running_server, tiny_source
from mlxr_tests.scripted_answer import answering

CODEX = os.environ.get("MLXR_CODEX") or shutil.which("codex")
FREE_FORM = "gpt-6.1-sol"
"""To models of this name Codex gives, by an item of the conversation, a namespace with a tool that takes programs."""
LONG = dataclasses.replace(EXACT, context=1 << 17, force_context=True)

pytestmark = [pytest.mark.long, pytest.mark.skipif(not CODEX, reason="codex is not installed (tests/README.md)")]


class Script:
    """Says what the model says, and keeps what it was asked."""

    def __init__(self, calls: list[tuple[str, str]]) -> None:
        """Begins with the first call."""
        self._calls = calls
        self.jobs: list[Any] = []
        self.prompts: list[list[int]] = []

    async def answer(self, model: Any, job: Any, **options: Any) -> AsyncGenerator[AnswerEvent]:
        """In the place of `mlxr.server.chat.answer.answer`, after the template has written the prompt."""
        self.prompts.append(await model.format.prompt(job))
        self.jobs.append(job)
        turn = len(self.jobs) - 1
        if turn < len(self._calls):
            name, arguments = self._calls[turn]
            script: Any = [
                [ReasoningDelta("I look.")],
                [ToolStart(0, f"call_{turn}", name)],
                [ToolArguments(0, arguments)],
            ]
        else:
            script = [[ContentDelta("All is "), ContentDelta("done.")]]
        async for piece in answering(script)(model, job, **options):
            yield piece


@pytest.fixture(scope="module")
def long_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    template = tmp_path_factory.mktemp("codex") / "hermes.jinja"
    template.write_text(HERMES)
    sources = [tiny_source(name, template=template, changes=LONG) for name in ("tiny", FREE_FORM)]
    with running_server(lambda: ModelPool(sources)) as running:
        yield running


def run(server: RunningServer, folder: Path, *options: str, model: str = "tiny") -> str:
    """What `codex exec` says last."""
    home, work, last = folder / "home", folder / "work", folder / "last.txt"
    home.mkdir()
    work.mkdir()
    provider = f'{{name="mlxr", base_url="{server.url}/v1", wire_api="responses", request_max_retries=0}}'
    command = [
        str(CODEX),
        "exec",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
        "-C",
        str(work),
    ]
    command += ["-c", 'model_provider="mlxr"', "-c", f"model_providers.mlxr={provider}", "-m", model]
    command += ["--output-last-message", str(last), *options, "Say hello"]
    done = subprocess.run(
        command,
        env=os.environ | {"CODEX_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return last.read_text()


def test_a_task_in_two_turns(long_server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([("exec_command", json.dumps({"cmd": "echo made > made.txt; echo hello-$((40 + 2))"}))])
    monkeypatch.setattr(responses, "answer", script.answer)
    assert run(long_server, tmp_path) == "All is done."
    first, second = script.jobs
    assert (tmp_path / "work/made.txt").read_text() == "made\n"
    assistant, result = second.messages[-2:]
    assert (
        assistant["reasoning_content"] == "I look." and assistant["tool_calls"][0]["function"]["name"] == "exec_command"
    )
    assert result["role"] == "tool" and "hello-42" in result["content"]
    assert second.messages[: len(first.messages)] == first.messages and second.tools == first.tools
    names = [tool["function"]["name"] for tool in first.tools]
    assert "exec_command" in names and any("__" in name for name in names), names
    begin = len(script.prompts[0]) - 10  # all but how an answer begins: the prefix cache has that
    assert begin > 1000 and script.prompts[1][:begin] == script.prompts[0][:begin]


def test_a_tool_of_free_text(long_server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = 'const said = await tools.exec_command({cmd: "echo hello-$((40 + 2))"});\ntext(said.output);\n'
    script = Script([("functions__exec", json.dumps({"input": program}))])
    monkeypatch.setattr(responses, "answer", script.answer)
    assert run(long_server, tmp_path, model=FREE_FORM) == "All is done."
    first, second = script.jobs
    (tool,) = [tool["function"] for tool in first.tools if tool["function"]["name"] == "functions__exec"]
    assert tool["strict"] and "pattern" in tool["parameters"]["properties"]["input"]
    (call,) = second.messages[-2]["tool_calls"]
    assert call["function"] == {"name": "functions__exec", "arguments": {"input": program}}
    assert second.messages[-1]["role"] == "tool" and "hello-42" in second.messages[-1]["content"]
