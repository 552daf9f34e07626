"""Turns YAML text into plain data, with the line and column of every key and value.

Reads with PyYAML's composer, so no object is ever constructed from a tag, and bounds what it reads: 1 MiB, 10,000
nodes after aliases are expanded, 32 levels. Plain scalars are read as YAML 1.2 would (1e-5 is a number, 010 and 1:30
are text), with yes/no/on/off as flags. Every key is text, and no mapping holds a key twice.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.problems import Mark, Problem, render
from mlxr.compiler.spec.yaml_mistakes import explain_yaml

MAX_BYTES = 2**20
MAX_NODES = 10_000
MAX_DEPTH = 32

Path = tuple[str | int, ...]

Scalar = str | int | float | bool | None

_SCALARS: tuple[tuple[re.Pattern[str], Callable[[str], Scalar]], ...] = (
    (re.compile(r"|~|null|Null|NULL"), lambda text: None),
    (re.compile(r"true|yes|on", re.IGNORECASE), lambda text: True),
    (re.compile(r"false|no|off", re.IGNORECASE), lambda text: False),
    (re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)"), int),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text, 16)),
    (re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE), lambda text: float(text.replace(".", ""))),
)
_TAGS = {
    f"tag:yaml.org,2002:{tag}" for tag in ("null", "bool", "int", "float", "str", "timestamp", "value", "merge")
} | {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
_MAX_DIGITS = 400


@dataclass(frozen=True)
class Document:
    """A mapping read from YAML, with the place of everything in it."""

    source: str
    lines: tuple[str, ...]
    data: dict[str, Any]
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def at_value(self, path: Path) -> Mark:
        """Where the value of `path` is, or else the nearest section that would hold it."""
        return self.values[path] if path in self.values else self.at_key(path)

    def at_key(self, path: Path) -> Mark:
        """Where the last key of `path` is, or else the nearest section that would hold it."""
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys[path] if path else self.values[()]

    def error(self, problems: list[Problem]) -> SpecError:
        """One error that shows all `problems`."""
        return SpecError(render(problems, self.source, self.lines))


def interpret(text: str) -> Scalar:
    """The value of a plain (unquoted) scalar."""
    if len(text) <= _MAX_DIGITS:
        for pattern, read in _SCALARS:
            if pattern.fullmatch(text):
                return read(text)
    return text


def read_document(text: str, source: str, *, is_ours: bool = False) -> Document:
    """Reads YAML text that holds one mapping.

    Args:
        text: the text.
        source: where it is from, for messages.
        is_ours: whether this package wrote it, so that PyYAML's parser in C may read it, if it is there: six times as
            fast, with a limit of 1000 levels until aliases are expanded, and with other words for mistakes.

    Raises:
        SpecError: it is not YAML, is not one mapping, or exceeds a limit. Keys that are given twice or are not text do
            not raise: they are in `Document.problems`, to be reported together with other mistakes.
    """
    text = text.removeprefix("\ufeff")
    lines = tuple(text.splitlines())
    try:
        if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            raise _RefusedError(Problem(Mark(1, 1), f"larger than {MAX_BYTES} bytes; a spec is a page of text"))
        root = _compose(text, is_ours)
        if root is None:
            raise _RefusedError(
                Problem(Mark(1, 1), "empty; expected a mapping of keys to values", "start with `name: ...`")
            )
        if not isinstance(root, yaml.MappingNode):
            kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
            raise _RefusedError(Problem(_mark(root), f"{kind} at top level; expected a mapping of keys to values"))
        document = Document(source, lines, {})
        document.data.update(_Reader(document).mapping(root, (), 0))
        document.values[()] = _mark(root)
    except _RefusedError as error:
        raise SpecError(render([error.problem], source, lines)) from None
    return document


class _RefusedError(Exception):
    """Ends the reading of a document; never leaves this module."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


class _Composer(yaml.SafeLoader):
    """Composes nodes and stops at the limits; aliases are single nodes here, so only text that is written counts."""

    nodes = 0
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Composes one node and everything under it."""
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_NODES or self.depth > MAX_DEPTH:
            mark = self.get_mark()
            what = f"more than {MAX_NODES} values" if self.depth <= MAX_DEPTH else f"more than {MAX_DEPTH} levels deep"
            raise _RefusedError(Problem(Mark(mark.line + 1, mark.column + 1), f"{what}; this is not a spec"))
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(text: str, is_ours: bool) -> yaml.Node | None:
    composer = getattr(yaml, "CSafeLoader", _Composer) if is_ours else _Composer
    try:
        node: yaml.Node | None = composer(text).get_single_node()
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        mark = Mark(len(before.splitlines() or [""]), len((before.splitlines() or [""])[-1]) + 1)
        raise _RefusedError(
            Problem(mark, f"character U+{ord(text[error.position]):04X} cannot stand in YAML", "remove it")
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _RefusedError(explain_yaml(error, text.splitlines())) from None
    except (ValueError, OverflowError) as error:  # an escape such as "\UFFFFFFFF"
        raise _RefusedError(
            Problem(Mark(1, 1), f"not YAML: an escape that stands for no character ({error})")
        ) from None
    return node


def _mark(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


class _Reader:
    """Turns nodes into plain data and notes where each key and value is."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = 0

    def value(self, node: yaml.Node, path: Path, depth: int) -> Any:
        """Plain data of a node. Counts what aliases expand to, and ends a node that contains itself by its depth."""
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise _RefusedError(
                Problem(_mark(node), "aliases expand this document without bound; write the values out")
            )
        self._document.values[path] = _mark(node)
        if node.tag not in _TAGS:
            raise _RefusedError(
                Problem(
                    _mark(node), f"tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not supported", "remove it"
                )
            )
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        """Plain data of a mapping; a key given twice keeps its first value and is noted as a problem."""
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                what = f"key {key_node.value}" if isinstance(key_node, yaml.ScalarNode) else "a key that is a list"
                self._note(_mark(key_node), f"{what} is not text", "put it in quotes if it is meant as a name")
                continue
            at = (*path, key)
            if key in data:
                name = ".".join(map(str, at))
                self._note(_mark(key_node), f"{name} is given twice; first on line {self._document.keys[at].line}")
                continue
            self._document.keys[at] = _mark(key_node)
            data[key] = self.value(value_node, at, depth + 1)
        return data

    def _scalar(self, node: yaml.Node) -> Scalar:
        text = str(node.value)
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise _RefusedError(
                Problem(_mark(node), "half of a surrogate pair is not a character", "remove the escape")
            )
        return text if getattr(node, "style", None) else interpret(text)

    def _note(self, mark: Mark, text: str, fix: str = "") -> None:
        self._document.problems.append(Problem(mark, text, fix))
