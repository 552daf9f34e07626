"""Each field of a request is assigned in one module, and no step changes another one: read from the sources.

An assignment is `x.field = ...`, `x.field += ...`, `x.field[i] = ...`, `del x.field`, or a call of a method that
changes a list. Where the name of `x` does not say which record it is, it counts for every record that has such a field.
"""

import ast
import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import mlxr
from mlxr.runtime.engine import request
from mlxr.runtime.engine.step import Decode, Step
from mlxr.runtime.engine.time_spent import Account

ROOT = Path(mlxr.__file__).parent
RECORDS = {
    "request": request.Request,
    "answer": request.Answer,
    "completion": request.Completion,
    "run": request.RunState,
    "draft": request.Draft,
    "fetch": request.TierFetch,
    "account": Account,
}
"""By the name of the attributes and variables that hold them."""
WRITERS = {
    "answer": "request",
    "completion": "request",
    "run": "scheduler",
    "run.unread": "prompts_being_read",
    "fetch": "tier_link",
    "account": "time_spent",
}
"""The modules of records of which one module assigns all fields, but for those that are named."""
CHANGES = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}


def fields(record: str) -> dict[str, bool]:
    """The names of its fields, and whether each is a list."""
    return {field.name: str(field.type).startswith("list") for field in dataclasses.fields(RECORDS[record])}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The modules that have to do with requests, by their last names."""
    files = [path for folder in ("runtime", "server", "bench", "cli") for path in (ROOT / folder).rglob("*.py")]
    own = ("engine.request import", "engine.step import", "engine.scheduler import")
    texts = {path: path.read_text() for path in files}
    chosen = [path for path, text in texts.items() if path.stem == "request" or any(word in text for word in own)]
    assert len({path.stem for path in chosen}) == len(chosen), "their last names differ"
    return {path.stem: texts[path] for path in chosen}


def changed(text: str) -> Iterator[tuple[ast.Attribute, bool]]:
    """The attributes that a module changes, and whether it does so as one changes a list."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node, False
            continue
        listed: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            listed = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            listed = node.func.value
        if isinstance(listed, ast.Attribute):
            yield listed, True


def name_of(node: ast.expr) -> str:
    """`run` of `request.run` and of `run`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def writers(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules that assign each field, which is named as `run.computed`."""
    found = defaultdict(set)
    for module, text in sources.items():
        for node, as_list in changed(text):
            base = name_of(node.value)
            if base == "self" and module != "request":
                continue  # of a class that has a field of the same name
            for record in [base] if base in RECORDS else RECORDS:
                if node.attr in (known := fields(record)) and (known[node.attr] or not as_list):
                    found[f"{record}.{node.attr}"].add(module)
    return found


def test_each_field_of_a_request_is_assigned_in_one_module(sources: dict[str, str]) -> None:
    found = writers(sources)
    for field, modules in found.items():
        record = field.partition(".")[0]
        assert len(modules) == 1 and record != "request", f"{field} is assigned in {modules}"
        assert record not in WRITERS or modules == {WRITERS.get(field, WRITERS[record])}
    seen = {"answer.is_done", "completion.text", "run.computed", "run.unread", "draft.drafted", "fetch.blocks"}
    assert seen <= set(found), "assignments are seen"


@pytest.mark.parametrize(
    ("module", "line", "field"),
    [
        ("core", "request.run.computed = end", "run.computed"),
        ("core", "part.request.run.in_flight -= 1", "run.in_flight"),
        ("answers", "run.certain, x = end, 1", "run.certain"),
        ("step", "r.in_flight = 0", "run.in_flight"),
        ("core", "request.answer.completion.token_ids.append(token)", "completion.token_ids"),
        ("scheduler", "completion.logprobs[0] = token", "completion.logprobs"),
        ("generation", "del request.fetch.blocks", "fetch.blocks"),
        ("core", "request.listener = print", "request.listener"),
    ],
)
def test_a_second_writer_is_found(sources: dict[str, str], module: str, line: str, field: str) -> None:
    planted = f"\n\ndef planted(request, part, run, r, end, token, completion):\n    {line}\n"
    found = writers(sources | {module: sources[module] + planted})
    assert module in found[field] and (len(found[field]) == 2 or field == "request.listener")


def test_no_step_changes_another_one(sources: dict[str, str]) -> None:
    """Fields of steps are assigned by the methods of a step, to itself alone."""
    own = {*Step.__slots__, *Decode._fields}
    for module, text in sources.items():
        for node, _ in changed(text):
            is_step = name_of(node.value) in ("step", "before", "last", "ahead", "decode") or module == "step"
            assert name_of(node.value) == "self" or not (is_step and node.attr in own), f"{module}: {ast.unparse(node)}"
