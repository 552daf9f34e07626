"""`mlxr launch`: starts a coding agent that uses a model of this machine."""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mlxr.cli.agents import AGENTS, Agent, Served, Start
from mlxr.cli.argparse_types import model_name, token_count
from mlxr.cli.model_arguments import add_host_argument
from mlxr.cli.pull_progress import pull_absent
from mlxr.cli.serve import served_name
from mlxr.compiler.errors import RequestError
from mlxr.runtime.hosts.registry import AUTO
from mlxr.server.life.control import AnswerError, ask, status_of
from mlxr.server.life.shared_server import is_shared, start_shared, using
from mlxr.server.life.state_file import StateFile, running_servers

_CONTEXT = 65536
_SHORT = 24576
_LOAD_SECONDS = 1800.0
_NO_MEMORY = 503
_KEY = "mlxr"
_PRINTED_PORT = 8080
_FORMS = " (embeddings)"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "launch",
        help="start a coding agent that uses a model here",
        usage="mlxr launch [OPTION ...] AGENT [MODEL] [-- ARGUMENT ...]",
        description="Start a coding agent that uses a model of this machine: by a server that runs and has the model, "
        "else by one that ends with the agent. The agent is set up by its environment and its own options, for this "
        "run alone: none of its files are written. What follows -- is given to it.",
    )
    parser.add_argument("agent", choices=AGENTS, metavar="AGENT", help=", ".join(AGENTS))
    parser.add_argument(
        "model",
        nargs="?",
        type=model_name,
        metavar="MODEL",
        help="what mlxr serve takes, or the name of a model that a running server has (default: the only one)",
    )
    parser.add_argument(
        "--context",
        type=token_count,
        metavar="N",
        help=f"longest sequence in tokens, such as 32k (default: {_CONTEXT}, or what the model has)",
    )
    parser.add_argument("--port", type=int, metavar="N", help="of the server to use or to start (default: any)")
    add_host_argument(parser, "where the model runs, if a server is started")
    parser.add_argument(
        "--kv", choices=("f32", "f16", "bf16", "q8", "q4"), help="element type of the cache, if a server starts"
    )
    parser.add_argument("--print", action="store_true", dest="shows", help="print what would be done, and do nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command, and returns the agent's exit code."""
    agent = AGENTS[args.agent]
    if args.context is not None and args.context < 1:
        raise RequestError(f"--context is {args.context}; expected at least 1")
    if args.shows:
        _show(args, agent)
        return 0
    program = agent.find()
    state, name = _server_with(args)
    with ExitStack() as stack:
        served = _loaded(args, state, name, stack)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlxr-launch-")))
        start = agent.start(served, folder)
        for file, text in start.files.items():
            (folder / file).write_text(text, encoding="utf-8")
        return _run([program, *start.arguments, *args.passed], _environment(start.variables))


def _server_with(args: argparse.Namespace) -> tuple[StateFile | None, str]:
    """The running server that has the model, or None; and the model's name there, or what MODEL is."""
    found: list[tuple[StateFile, dict[str, Any]]] = []
    for state in running_servers():
        told = status_of(state)
        if told.get("state") == "serving" and args.port in (None, state.port):
            models = [model for model in told.get("models", []) if not model["name"].endswith(_FORMS)]
            found += [(state, model) for model in models]
    if args.model is not None:
        name = served_name(args.model)
        chosen = [state for state, model in found if model["name"] == name]
        return (chosen[0], name) if chosen else (None, args.model)
    loaded = [each for each in found if each[1]["state"] == "loaded"]
    for choice in (loaded, found):
        if len(choice) == 1:
            return choice[0][0], choice[0][1]["name"]
    names = sorted({model["name"] for _, model in found}) or _registered()
    if len(names) == 1 and not found:
        return None, names[0]
    if not names:
        raise RequestError(
            "no model was given, no server is running, and no model is registered; for example: mlxr launch "
            f"{args.agent} ./model.gguf, or mlxr pull ORG/REPO"
        )
    raise RequestError(f"there are several models: name one: {', '.join(names)}")


def _registered() -> list[str]:
    from mlxr.registry.registry import Registry  # noqa: PLC0415 (only when needed)

    return list(Registry().names())


def _loaded(args: argparse.Namespace, state: StateFile | None, name: str, stack: ExitStack) -> Served:
    """The model, once it is loaded with the context that it shall have."""
    wanted = args.context or _CONTEXT
    if state is not None:
        stack.enter_context(using(state))
        _load(state, name, wanted)
    else:
        model, name = name, served_name(name)
        pull_absent(model)
        state = _started(args, model, name, _possible(model, wanted), stack)
    models: list[dict[str, Any]] = status_of(state).get("models", [])
    told = next((each for each in models if each["name"] == name), {})
    context, memory = told.get("context"), told.get("memory")
    if context is None:
        raise RequestError(f"the server at {state.url} does not say what context {name} has: see mlxr ps")
    ends = "a server that ends with the agent" if is_shared(state) else "a server that goes on"
    print(f"{args.agent} uses {name} at {state.url}, {ends}: {memory}", file=sys.stderr)
    if context < _SHORT:
        print(
            f"note: a coding agent's own instructions and tools take 8,000 to 15,000 tokens; the model has {context:,}",
            file=sys.stderr,
        )
    return Served(state.url, state.token, name, context)


def _started(args: argparse.Namespace, model: str, name: str, context: int | None, stack: ExitStack) -> StateFile:
    """A server that has loaded the model; if memory has no room for this context, then with what there is."""
    for tokens in (context, None):
        state = start_shared(_serve_arguments(args, model, tokens, args.port or 0))
        with ExitStack() as server:
            server.enter_context(using(state))
            try:
                _load(state, name, None)
            except AnswerError as error:
                if error.status != _NO_MEMORY or tokens is None or args.context is not None:
                    raise
                print(f"note: no room for a context of {tokens:,}: {error}", file=sys.stderr)
                continue
            stack.enter_context(server.pop_all())
            return state
    raise AssertionError("the last attempt returns or raises")


def _serve_arguments(args: argparse.Namespace, model: str, context: int | None, port: int) -> list[str]:
    words = [model, "--port", str(port), "--keep-alive", "forever"]
    for option, value, usual in (("--context", context, None), ("--host", args.host, AUTO), ("--kv", args.kv, None)):
        if value != usual:
            words += [option, str(value)]
    return words


def _possible(model: str, wanted: int) -> int:
    """As much of a context as the model has."""
    from mlxr.loading.model_facts import model_facts  # noqa: PLC0415 (slow to import)

    return min(wanted, model_facts(model).context)


def _load(state: StateFile, name: str, context: int | None) -> None:
    """Has a server load a model that can chat, if it has not."""
    shown = ask(state, "/api/show", {"model": name}, _LOAD_SECONDS)
    if not shown.get("template"):
        raise RequestError(f"{name} has no chat template: an agent needs a model that was made to chat")
    if "tools" not in shown.get("capabilities", []):
        print(f"note: the chat template of {name} has no tools: the model is told of them in words", file=sys.stderr)
    models: list[dict[str, Any]] = status_of(state).get("models", [])
    has = next((model["context"] for model in models if model["name"] == name), None)
    if has is None or has < (context or 0):
        print(f"loading {name} ...", file=sys.stderr, flush=True)
    options = {} if context is None else {"options": {"num_ctx": context}}
    told = ask(state, "/api/generate", {"model": name} | options, _LOAD_SECONDS)
    for warning in told.get("warnings", []):
        print(f"note: {warning}", file=sys.stderr)


def _environment(variables: Mapping[str, str | None]) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in variables}
    return environment | {name: value for name, value in variables.items() if value is not None}


def _run(words: list[str], environment: dict[str, str]) -> int:
    """Runs an agent in this terminal. Ctrl-C is left to the agent; other signals that end this process end it first."""
    with _passed_on() as processes:
        process = subprocess.Popen(words, env=environment)
        processes.append(process)
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _passed_on() -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Passes signals on to the processes of a list."""
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: object) -> None:
        for process in processes:
            process.send_signal(number)

    def leave(number: int, _: object) -> None:
        """The terminal has told the agent, too. Were the signal ignored here, the agent would begin with that."""

    numbers = {signal.SIGINT: leave, signal.SIGTERM: pass_on, signal.SIGHUP: pass_on}
    before = {number: signal.signal(number, action) for number, action in numbers.items()}
    try:
        yield processes
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _show(args: argparse.Namespace, agent: Agent) -> None:
    """Prints commands for a shell that do the same."""
    state, name = _server_with(args)
    context = args.context or _CONTEXT
    if state is None:
        model, name = name, served_name(name)
        context = _possible(model, context)
        port = args.port or _PRINTED_PORT
        url = f"http://127.0.0.1:{port}"
        print(shlex.join(["mlxr", "serve", *_serve_arguments(args, model, context, port), "--detach"]))
    else:
        url = state.url
        print(f"# {url} has {name}")
    folder = Path(tempfile.gettempdir()) / "mlxr-launch"
    start = agent.start(Served(url, _KEY, name, context), folder)
    print("\n".join(_shell_lines(start, folder)))
    print(shlex.join([agent.program, *start.arguments, *args.passed]))


def _shell_lines(start: Start, folder: Path) -> Iterator[str]:
    if start.files:
        yield shlex.join(["mkdir", "-p", str(folder)])
    for file, text in start.files.items():
        yield f"printf %s {shlex.quote(text)} > {shlex.quote(str(folder / file))}"
    for name, value in start.variables.items():
        if value is None:
            yield f"unset {name}"
        else:
            yield f"export {name}={shlex.quote(value)}"
