"""Renders chat templates, as the script of a `LimitedProcess`. It imports nothing of MLXR.

A template is a program that cannot be trusted. Jinja2's sandbox keeps it away from Python's internals. It does not keep
it from running for ever or from filling the memory: the limits of the process do. Its output is limited too. And
where the system can see to it, the process opens no file and no socket, should the sandbox have a hole.

Question: `{"template", "variables", "most_characters"}`; answer: `{"text"}`, or `{"error", "line"}`. Another question:
`{"template", "names"}`; answer: which of the names it reads, as `{"keys"}` of something and as `{"variables"}`.
"""

import codecs
import json
import pprint  # noqa: F401 (a filter of jinja2's imports it when it is used: too late)
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.constants
import jinja2.debug  # these two for errors and lipsum; as above
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

IS_SEALED = True
_KEPT = 4
TEMPLATE = "chat template"  # how the compiled template is called in tracebacks


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what the model wrote, for training; the text stays."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja2 has it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def make_environment() -> SandboxedEnvironment:
    """The environment that chat templates expect. Some append to lists, as llama.cpp lets them."""
    environment = SandboxedEnvironment(
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
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_as_list,
    )


def _as_list(value: Any) -> list[Any]:
    """What filters like `map` give, as JSON."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _refuse(message: object) -> None:
    raise jinja2.TemplateError(f"it refuses this conversation: {message}")


class _Rendering:
    """Renders templates, and keeps the last ones compiled."""

    def __init__(self) -> None:
        self._environment = make_environment()
        self._compiled: dict[str, jinja2.Template] = {}

    def render(self, template: str, variables: Mapping[str, Any], most_characters: int) -> str:
        """The text, collected piece by piece, so that endless text is noticed here."""
        compiled = self._compiled.get(template)
        if compiled is None:
            code = self._environment.compile(template, filename=TEMPLATE)
            compiled = jinja2.Template.from_code(self._environment, code, self._environment.make_globals(None), None)
            if len(self._compiled) >= _KEPT:
                self._compiled.clear()
            self._compiled[template] = compiled
        pieces, length = [], 0
        for piece in compiled.generate(variables):
            length += len(piece)
            if length > most_characters:
                raise jinja2.TemplateError(f"its text is longer than {most_characters} characters")
            pieces.append(piece)
        return "".join(pieces)


def read_names(template: str, names: Collection[str]) -> dict[str, Any]:
    """Which of some names a template reads."""
    keys: set[object] = set()
    variables: set[str] = set()
    for node in make_environment().parse(template).find_all((nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Call)):
        match node:
            case nodes.Name(name=name, ctx="load"):
                variables.add(name)
            case nodes.Getattr(attr=key) | nodes.Getitem(arg=nodes.Const(value=key)):
                keys.add(key)
            case nodes.Call(node=nodes.Getattr(attr="get"), args=[nodes.Const(value=key), *_]):
                keys.add(key)
    return {"keys": [name for name in names if name in keys], "variables": [n for n in names if n in variables]}


def answerer() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The function that answers questions."""
    rendering = _Rendering()
    for name in ("ascii", "idna", "latin-1", "unicode_escape", "raw_unicode_escape", "utf-16", "utf-32"):
        codecs.lookup(name)  # Python reads its codecs, and the clock its zone, when they are used first
    datetime.now().strftime("%c")

    def answer(question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if "names" in question:
                return read_names(question["template"], question["names"])
            text = rendering.render(question["template"], question["variables"], question["most_characters"])
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

    return answer


def _line(error: BaseException) -> int | None:
    """The line of the template in which an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == TEMPLATE), None)
