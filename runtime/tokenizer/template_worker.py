"""Renders chat templates, as a script in a process of its own that may be killed. It imports nothing of MLXR.

A template is a program that cannot be trusted. Jinja2's sandbox keeps it away from Python's internals. It does not keep
it from running for ever or from filling the memory, and within a process neither can be stopped while C code runs. So
the whole process has limits: the system limits its address space and CPU time, and its output is limited too.

Protocol: a line of JSON in, a line of JSON out. In: `{"template", "variables"}`; out: `{"text"}`, or
`{"error", "line"}`. The first line out is `{}`, when the process is ready.
"""

import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE = "chat template"  # how the compiled template is called in tracebacks


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the model wrote, for training; the text stays."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja2 has it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def make_environment() -> ImmutableSandboxedEnvironment:
    """The environment that chat templates expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> None:
    raise jinja2.TemplateError(f"it refuses this conversation: {message}")


class _Rendering:
    """Renders templates, and keeps the last one compiled."""

    def __init__(self, most_characters: int) -> None:
        self._environment = make_environment()
        self._most_characters = most_characters
        self._text = ""
        self._compiled: jinja2.Template | None = None

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """The text, collected piece by piece, so that endless text is noticed here."""
        if self._compiled is None or template != self._text:
            code = self._environment.compile(template, filename=TEMPLATE)
            self._compiled = jinja2.Template.from_code(
                self._environment, code, self._environment.make_globals(None), None
            )
            self._text = template
        pieces, length = [], 0
        for piece in self._compiled.generate(variables):
            length += len(piece)
            if length > self._most_characters:
                raise jinja2.TemplateError(f"its text is longer than {self._most_characters} characters")
            pieces.append(piece)
        return "".join(pieces)


def _answer(render: Callable[[str, Mapping[str, Any]], str], request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = render(request["template"], request["variables"])
        text.encode("utf-8")
        return {"text": text}
    except jinja2.TemplateSyntaxError as error:
        return {"error": error.message, "line": error.lineno}
    except MemoryError:
        return {"error": "it takes too much memory", "line": None}
    except RecursionError as error:
        return {"error": "it is nested too deeply", "line": _line(error)}
    except Exception as error:  # a template may raise anything
        said = str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
        return {"error": said[:1000], "line": _line(error)}


def _line(error: BaseException) -> int | None:
    """The line of the template in which an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == TEMPLATE), None)


def _bound_memory(most_bytes: int) -> None:
    """Limits the address space; on systems that ignore this limit, a thread watches the resident memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
        return

    def watch() -> None:
        while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < most_bytes:  # in bytes on macOS
            time.sleep(0.01)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Serves until standard input ends."""
    most_bytes, most_characters, cpu_seconds = (int(word) for word in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too, but is meant for its parent
    # Answers go to a copy of standard output, so that nothing which a template prints can mix with them.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    rendering = _Rendering(most_characters)
    _bound_memory(most_bytes)
    print("{}", file=answers, flush=True)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # its signal ends the process, whatever code is running
        answer = json.dumps(_answer(rendering.render, request))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
