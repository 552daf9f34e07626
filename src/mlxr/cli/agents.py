"""The coding agents that `mlxr launch` starts, set up by environment and arguments: it never writes their own files."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mlxr.compiler.errors import RequestError

_KEY = "MLXR_API_KEY"
_IDLE_MS = 3_600_000
"""How long an agent waits for a server that reads a long prompt."""
_MOST_ANSWER = 32_000


@dataclass(frozen=True)
class Served:
    """A model that a server has.

    Attributes:
        url: of the server.
        key: which it takes.
        model: as requests call it.
        context: most tokens of prompt and answer.
    """

    url: str
    key: str = field(repr=False)
    model: str
    context: int

    @property
    def openai_url(self) -> str:
        """Where OpenAI's clients ask."""
        return f"{self.url}/v1"

    @property
    def most_answer(self) -> int:
        """Tokens that an agent may ask for at once, so that there is room for its prompt."""
        return min(_MOST_ANSWER, self.context // 4)


@dataclass(frozen=True)
class Start:
    """How an agent is started.

    Attributes:
        arguments: before those of the user.
        variables: of its environment; None: it must not be there, since it would lead elsewhere.
        files: texts by their names, in a folder of their own that goes when the agent ends.
    """

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


class _Rule(Protocol):
    def __call__(self, served: Served, folder: Path) -> Start:
        """How an agent is started that uses a server; `folder` will have its files."""


@dataclass(frozen=True)
class Agent:
    """A coding agent.

    Attributes:
        program: its command.
        install: the command that installs it.
        start: how it is started.
    """

    program: str
    install: str
    start: _Rule

    def find(self) -> str:
        """The path of its program.

        Raises:
            RequestError: it is not installed.
        """
        if (path := shutil.which(self.program)) is None:
            raise RequestError(f"{self.program} is not installed, or not on the path: {self.install}")
        return path


def _claude(served: Served, folder: Path) -> Start:
    models = dict.fromkeys(
        (
            "ANTHROPIC_MODEL",
            "ANTHROPIC_DEFAULT_FABLE_MODEL",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL",
            "ANTHROPIC_DEFAULT_OPUS_MODEL",
            "ANTHROPIC_DEFAULT_SONNET_MODEL",
            "ANTHROPIC_SMALL_FAST_MODEL",
            "CLAUDE_CODE_SUBAGENT_MODEL",
        ),
        served.model,
    )
    elsewhere = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_VERTEX")
    return Start(
        variables={
            "ANTHROPIC_BASE_URL": served.url,
            "ANTHROPIC_AUTH_TOKEN": served.key,
            **models,
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(served.most_answer),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "API_TIMEOUT_MS": str(_IDLE_MS),
            **dict.fromkeys(elsewhere),
        }
    )


def _codex(served: Served, folder: Path) -> Start:
    provider = {
        "name": "MLXR",
        "base_url": served.openai_url,
        "wire_api": "responses",
        "env_key": _KEY,
        "stream_idle_timeout_ms": _IDLE_MS,
    }
    options = {"model": served.model, "model_provider": "mlxr", "model_context_window": served.context}
    options |= {f"model_providers.mlxr.{name}": value for name, value in provider.items()}
    words = [word for name, value in options.items() for word in ("-c", f"{name}={json.dumps(value)}")]
    return Start((*words, "-c", 'web_search="disabled"'), {_KEY: served.key})


def _opencode(served: Served, folder: Path) -> Start:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "MLXR",
        "options": {"baseURL": served.openai_url, "apiKey": f"{{env:{_KEY}}}"},
        "models": {
            served.model: {
                "name": served.model,
                "tool_call": True,
                "limit": {"context": served.context, "output": served.most_answer},
            }
        },
    }
    name = f"mlxr/{served.model}"
    config = {"provider": {"mlxr": provider}, "model": name, "small_model": name}
    return Start(
        variables={"OPENCODE_CONFIG_CONTENT": json.dumps(_users("OPENCODE_CONFIG_CONTENT") | config), _KEY: served.key}
    )


def _qwen(served: Served, folder: Path) -> Start:
    file = "qwen.json"
    settings = {"model": {"generationConfig": {"contextWindowSize": served.context}}}
    return Start(
        ("--auth-type", "openai"),
        {
            "OPENAI_BASE_URL": served.openai_url,
            "OPENAI_API_KEY": served.key,
            "OPENAI_MODEL": served.model,
            "QWEN_CODE_MAX_OUTPUT_TOKENS": str(served.most_answer),
            "QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(folder / file),
        },
        {file: json.dumps(settings)},
    )


def _aider(served: Served, folder: Path) -> Start:
    file, name = "models.json", f"openai/{served.model}"
    known = {
        "litellm_provider": "openai",
        "mode": "chat",
        "max_input_tokens": served.context,
        "max_output_tokens": served.most_answer,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
    }
    return Start(
        ("--model", name, "--model-metadata-file", str(folder / file)),
        {"OPENAI_API_BASE": served.openai_url, "OPENAI_API_KEY": served.key},
        {file: json.dumps({name: known})},
    )


def _pi(served: Served, folder: Path) -> Start:
    """An extension of pi's tells it of the provider; the key is no part of the file."""
    file = "mlxr.js"
    model = {
        "id": served.model,
        "name": served.model,
        "reasoning": True,
        "input": ["text"],
        "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
        "contextWindow": served.context,
        "maxTokens": served.most_answer,
    }
    provider = {"name": "MLXR", "baseUrl": served.openai_url, "api": "openai-completions", "models": [model]}
    told = f"{{...{json.dumps(provider)}, apiKey: process.env.{_KEY}}}"
    return Start(
        ("--extension", str(folder / file), "--provider", "mlxr", "--model", served.model),
        {_KEY: served.key},
        {file: f'export default function (pi) {{ pi.registerProvider("mlxr", {told}); }}\n'},
    )


def _users(variable: str) -> dict[str, Any]:
    """The JSON object that the user has set in a variable; empty if it is not JSON, which no agent would read."""
    try:
        value = json.loads(os.environ.get(variable) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


AGENTS = {
    "claude": Agent("claude", "npm install -g @anthropic-ai/claude-code", _claude),
    "codex": Agent("codex", "npm install -g @openai/codex", _codex),
    "opencode": Agent("opencode", "npm install -g opencode-ai", _opencode),
    "aider": Agent("aider", "pip install aider-chat", _aider),
    "pi": Agent("pi", "npm install -g @earendil-works/pi-coding-agent", _pi),
    "qwen": Agent("qwen", "npm install -g @qwen-code/qwen-code", _qwen),
}
"""The agents, by the names of their commands."""
