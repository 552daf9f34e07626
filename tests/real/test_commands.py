"""The README's commands on a published model, with its own chat template; and servers' clients."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from mlxr_tests.real_files import SMOLLM2, real_file
from mlxr_tests.serve_process import ServeProcess, serve_process
from mlxr_tests.storyteller import VALID

QUESTION = "What is the capital of Japan?"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where these commands keep their registry."""
    return tmp_path_factory.mktemp("data")


def mlxr(data: Path, *arguments: str, said: str = "") -> str:
    """What a command prints, in the folder of the model's file."""
    done = subprocess.run(
        [sys.executable, "-m", "mlxr.cli", *arguments],
        cwd=real_file(SMOLLM2, ".gguf").parent,
        input=said,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"MLXR_DATA_DIR": str(data)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_run_answers_with_the_models_template(data: Path) -> None:
    assert "Tokyo" in mlxr(data, "run", FILE, "--prompt", QUESTION, "--temperature", "0", "--max-tokens", "30")


def test_run_prints_json(data: Path) -> None:
    shown = json.loads(mlxr(data, "run", FILE, "--prompt", QUESTION, "--temperature", "0", "--json"))
    assert "Tokyo" in shown["text"] and shown["finish_reason"] == "stop" and shown["launches"]


def test_chat_remembers_the_first_turn(data: Path) -> None:
    said = f"{QUESTION}\nWhich country did I ask about?\n"
    lines = mlxr(data, "chat", FILE, "--temperature", "0", "--max-tokens", "40", said=said)
    first, second = lines.strip().split("\n", 1)
    assert "Tokyo" in first and "Japan" in second


def test_a_name_of_its_own(data: Path) -> None:
    mlxr(data, "add", FILE, "--name", "smol")
    assert "smol" in mlxr(data, "list")
    assert "SmolLM2" in mlxr(data, "show", "smol")
    assert "Tokyo" in mlxr(data, "run", "smol", "--prompt", QUESTION, "--temperature", "0", "--max-tokens", "30")


def test_other_commands(data: Path, tmp_path: Path) -> None:
    mlxr(data, "import", FILE, "-o", str(tmp_path / "spec.yaml"))
    mlxr(data, "run", str(tmp_path / "spec.yaml"), "--weights", FILE, "--prompt", "Hello", "--max-tokens", "4")
    assert mlxr(data, "tokenize", FILE, "--prompt", "Once upon a time").split()
    (tmp_path / "text.txt").write_text(VALID.read_text()[:4000])
    assert "perplexity" in mlxr(data, "perplexity", FILE, "--text", str(tmp_path / "text.txt"))
    assert "tokens/s" in mlxr(data, "bench", FILE, "--prompt-tokens", "64", "--decode-tokens", "8")
    assert "attend" in mlxr(data, "inspect", FILE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """`mlxr serve FILE`."""
    with serve_process(tmp_path_factory.mktemp("serve"), model=f"smol={real_file(SMOLLM2, '.gguf')}") as process:
        yield process


def test_openai_client(server: ServeProcess) -> None:
    client: Any = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    asked = {"model": "smol", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    answer = client.chat.completions.create(**asked).choices[0]
    assert "Tokyo" in answer.message.content and answer.finish_reason == "stop"
    chunks = client.chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer.message.content
    city = {"city": {"type": "string", "maxLength": 20}}
    schema = {"type": "object", "properties": city, "required": ["city"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    answer = client.chat.completions.create(**asked, response_format=form).choices[0]
    assert json.loads(answer.message.content).keys() == {"city"}
    assert "Tokyo" in client.responses.create(model="smol", input=QUESTION, temperature=0).output_text


def test_anthropic_client(server: ServeProcess) -> None:
    client: Any = anthropic.Anthropic(base_url=server.url, api_key="none")
    asked = {"model": "smol", "max_tokens": 60, "messages": [{"role": "user", "content": QUESTION}]}
    greedy = {"extra_body": {"temperature": 0}}  # newer clients no longer have the field
    answer = client.messages.create(**asked, **greedy)
    assert "Tokyo" in answer.content[0].text
    with client.messages.stream(**asked, **greedy) as stream:
        assert "".join(stream.text_stream) == answer.content[0].text


def test_ollama_client(server: ServeProcess) -> None:
    client = ollama.Client(host=server.url)
    messages = [{"role": "user", "content": QUESTION}]
    answer = client.chat(model="smol", messages=messages, options={"temperature": 0})
    assert "Tokyo" in (answer.message.content or "")
    parts = client.chat(model="smol", messages=messages, options={"temperature": 0}, stream=True)
    assert "".join(part.message.content or "" for part in parts) == answer.message.content
