"""Cases of other projects' tests, read from their sources, and what MLXR's constraints say to them."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.constraint import Constraint, ConstraintCompiler
from mlxr.runtime.engine.sampling import Sampling
from mlxr_tests.byte_tokenizer import END, ByteTokenizer, ids_of
from mlxr_tests.constrained import tokens_of

CPP_TOKEN = re.compile(
    r'(?P<space>\s+|//[^\n]*|/\*.*?\*/)|R"(?P<fence>[^()\\ ]{0,16})\((?P<raw>.*?)\)(?P=fence)"'
    r'|"(?P<text>(?:\\.|[^"\\])*)"|(?P<name>[A-Za-z_]\w*)|(?P<number>\d+)|(?P<sign>.)',
    re.DOTALL,
)
_CPP_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
Answer = tuple[str | int, ...]
"""Parts of an answer: texts, and ids of control tokens."""


@dataclass(frozen=True)
class Case:
    """A grammar or a schema of another project, and answers that follow it or do not."""

    option: str
    source: Any
    right: tuple[Answer, ...] = ()
    wrong: tuple[Answer, ...] = ()
    is_refused: bool = False


def llama_cpp_cases(folder: Path) -> list[Case]:
    """The cases in llama.cpp's tests of grammars and schemas.

    Args:
        folder: its sources.
    """
    tests = folder / "tests"
    cases = [*_judged(tests / "test-grammar-integration.cpp")]
    for call, refused in (("verify_parsing", False), ("verify_failure", True)):
        for arguments in _calls(tests / "test-grammar-parser.cpp", call):
            cases.append(Case("grammar", _joined(arguments[0]), is_refused=refused))
    for arguments in _calls(tests / "test-json-schema-to-grammar.cpp", "test"):
        if len(arguments) == 1 and arguments[0] and isinstance(arguments[0][0], list):
            status, _, schema, *grammar = arguments[0][0]
            is_refused = status == ["FAILURE"]
            cases.append(Case("json_schema", _joined(schema), is_refused=is_refused))
            if not is_refused and grammar:
                cases.append(Case("grammar", _joined(grammar[0])))
    for call, place, refused in (("parse", 0, False), ("check", 1, False), ("assert_error", 1, True)):
        for arguments in _calls(tests / "test-json-schema.cpp", call):
            if len(arguments) > place and arguments[place] and isinstance(arguments[place][0], str):
                cases.append(Case("json_schema", _joined(arguments[place]), is_refused=refused))
    for path in sorted((folder / "grammars").glob("*.gbnf")):
        cases.append(Case("grammar", path.read_text()))
    return [case for case in cases if case.source]


def schema_suite_cases(folder: Path) -> Iterator[Case]:
    """The cases of JSON-Schema-Test-Suite: schemas with values that are valid or not.

    Args:
        folder: of one draft, `tests/draft2020-12`: its name says the draft of schemas that do not say it.
    """
    number = folder.name.removeprefix("draft")
    old = {"$schema": f"http://json-schema.org/draft-0{number}/schema#"} if number in ("3", "4", "6", "7") else {}
    for path in sorted(folder.glob("*.json")):
        for case in json.loads(path.read_text()):
            schema = case["schema"]
            yield _valued({**old, **schema} if isinstance(schema, dict) else schema, case["tests"])


def mask_bench_cases(folder: Path) -> Iterator[Case]:
    """The cases of MaskBench, whose schemas are those of JSONSchemaBench and others.

    Args:
        folder: `maskbench/data` of the repository jsonschemabench.
    """
    for path in sorted(folder.glob("*.json")):
        case = json.loads(path.read_text())
        yield _valued(case["schema"], case["tests"])


def _valued(schema: Any, tests: list[dict[str, Any]]) -> Case:
    texts = {
        valid: tuple((json.dumps(test["data"], ensure_ascii=False),) for test in tests if test["valid"] == valid)
        for valid in (True, False)
    }
    return Case("json_schema", schema, texts[True], texts[False])


def _judged(path: Path) -> Iterator[Case]:
    for call, option in (("test_schema", "json_schema"), ("test_grammar", "grammar")):
        for arguments in _calls(path, call):
            if len(arguments) == 4 and all(part and isinstance(part[0], list) for part in arguments[2:]):
                _, source, right, wrong = arguments
                yield Case(option, _joined(source), _answers(right[0]), _answers(wrong[0]))


def _answers(listed: list[list[str | int]]) -> tuple[Answer, ...]:
    return tuple(tuple(answer) for answer in listed if answer)


def _joined(argument: list[object]) -> str:
    return "".join(part for part in argument if isinstance(part, str))


def _calls(path: Path, name: str) -> Iterator[list[list[object]]]:
    """The arguments of all calls of a function: each a list of texts, ids, and lists of arguments in braces."""
    tokens = [match for match in CPP_TOKEN.finditer(path.read_text()) if match["space"] is None]
    for at, token in enumerate(tokens[:-1]):
        if token["name"] == name and tokens[at + 1]["sign"] == "(":
            yield _arguments(tokens, at + 2)[0]


def _arguments(tokens: Sequence[re.Match[str]], at: int) -> tuple[list[list[object]], int]:
    arguments: list[list[object]] = [[]]
    while at < len(tokens) and tokens[at]["sign"] not in (")", "}", ";"):
        token = tokens[at]
        if token["sign"] == ",":
            arguments.append([])
        elif token["sign"] == "{":
            inner, at = _arguments(tokens, at + 1)
            arguments[-1].append(inner)
        elif token["name"] == "token":
            arguments[-1].append(int(tokens[at + 2]["number"]))
            at += 3
        elif token["sign"] == "(":
            inner, at = _arguments(tokens, at + 1)
            arguments[-1] += inner[0]
        elif token["raw"] is not None:
            arguments[-1].append(token["raw"])
        elif token["text"] is not None:
            arguments[-1].append(_CPP_ESCAPE.sub(_unescaped, token["text"]))
        elif token["name"] in ("SUCCESS", "FAILURE"):
            arguments[-1].append(token["name"])
        at += 1
    return arguments, at


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code[1:], 16)) if code[0] in "xuU" and len(code) > 1 else _SIMPLE.get(code, code)


class Judge:
    """Asks MLXR's constraints about answers."""

    def __init__(self, tokenizer: ByteTokenizer | None = None) -> None:
        tokenizer = tokenizer or ByteTokenizer(longer=[f"~{number}~" for number in range(1000)])
        self._compiler = ConstraintCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)

    def constraint(self, option: str, source: object, *, strict: bool = False) -> Constraint:
        """The constraint; raises RequestError if it is refused."""
        constraint = self._compiler.compile(Sampling(**{option: source, "strict": strict}))
        assert constraint is not None
        return constraint

    def allows(self, constraint: Constraint, answer: Answer) -> bool:
        """Whether an answer is allowed, token by token, and may end; the constraint is at its beginning afterwards."""
        ids: list[int] = []
        for part in answer:
            ids += [part] if isinstance(part, int) else ids_of(part.encode())
        try:
            for token_id in ids:
                constraint.accept(token_id)
            return END in tokens_of(constraint.mask())
        except RequestError:
            return False
        finally:
            constraint.truncate(0)
