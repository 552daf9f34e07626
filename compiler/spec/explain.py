"""Validation errors in the words of the person who wrote the file.

Turns pydantic's errors into problems: the place in the file, the key path, the value got, what was expected (from the
schema), and the nearest thing that would have been right.
"""

import difflib
import json
import re
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mlxr.compiler.spec.document import Document, Path
from mlxr.compiler.spec.fields import CONTRADICTION, ONE_SIZE, SIZES
from mlxr.compiler.spec.problems import MAX_SHOWN, Problem
from mlxr.compiler.spec.schema import SchemaNode, schema_of, show_number

M = TypeVar("M", bound=BaseModel)

_BOUNDS = {
    "greater_than_equal": ("ge", "of at least"),
    "greater_than": ("gt", "greater than"),
    "less_than_equal": ("le", "of at most"),
    "less_than": ("lt", "less than"),
}
_LENGTHS = {"too_short": ("min_length", "at least"), "too_long": ("max_length", "at most")}
_SECTION_TYPES = ("model_type", "model_attributes_type", "dict_type")
_MAX_KEY = 64
_MAX_CHOICES = 24
_MAX_ITEMS = 8

# Keys of Hugging Face's config.json, and what specs call them.
_FOREIGN_KEYS = {
    "hidden_act": "activation",
    "max_position_embeddings": "context",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "num_key_value_heads": "num_kv_heads",
    "original_max_position_embeddings": "original_context",
    "partial_rotary_factor": "fraction",
    "rms_norm_eps": "eps",
    "rope_scaling": "scaling",
    "rope_theta": "theta",
    "rope_type": "kind",
    "tie_word_embeddings": "tie_embeddings",
    "torch_dtype": "activation_dtype",
}


def validated(model: type[M], document: Document) -> M:
    """The document as a model.

    Raises:
        SpecError: with every problem of the document.
    """
    try:
        result = model.model_validate(document.data)
    except ValidationError as error:
        raise document.error([*document.problems, *_explain(model, error, document)]) from None
    if document.problems:
        raise document.error(document.problems)
    return result


def show(value: Any) -> str:
    """A value as it would be written in YAML, cut to a readable length."""
    if isinstance(value, dict):
        return "a section" if value else "an empty section"
    if isinstance(value, list | tuple):
        items = ", ".join("a list" if isinstance(item, list | tuple) else show(item) for item in value[:_MAX_ITEMS])
        return f"[{items}]" if len(value) <= _MAX_ITEMS and len(items) <= 60 else f"a list of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return json.dumps(value if len(value) <= 60 else value[:57] + "...", ensure_ascii=False)
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(word: str, choices: tuple[str, ...]) -> str | None:
    """The choice that is most similar to `word`; None if none is similar."""
    if len(word) > _MAX_KEY:
        return None
    lower = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.55)
    return lower[matches[0]] if matches else None


@cache
def _sections(model: type[BaseModel]) -> SchemaNode:
    """Made once, since it takes as long as all else about an error."""
    return SchemaNode(schema_of(model))


def _explain(model: type[BaseModel], error: ValidationError, document: Document) -> list[Problem]:
    root = _sections(model)
    problems: list[Problem] = []
    renamed: set[Path] = set()
    details = error.errors(include_url=False)
    for detail in [detail for detail in details if detail["type"] == "extra_forbidden"]:
        path, section = _locate(root, detail["loc"])
        if len(problems) >= MAX_SHOWN:
            problems.append(Problem(document.at_key(path), f"{_dotted(path)} is not a key"))
            continue
        fix, meant = _suggest_key(root, section, path)
        renamed |= meant
        what = f"unknown key {_dotted(path)}" if len(str(path[-1])) <= _MAX_KEY else "unknown key"
        problems.append(Problem(document.at_key(path), what, fix))
    for detail in details:
        path, section = _locate(root, detail["loc"])
        if detail["type"] == CONTRADICTION:
            for at, text, fix in detail["ctx"]["found"]:
                target = _below(path, at, document)
                problems.append(Problem(document.at_value(target), f"{_dotted(target)}: {text}", fix))
        elif detail["type"] != "extra_forbidden" and not (detail["type"] == "missing" and path in renamed):
            problems.append(_explain_value(detail, path, section, document))
    return problems


def _below(path: Path, at: str, document: Document) -> Path:
    """The path of a dotted key below `path`; a number is an item of a list where the document has one there."""
    for key in at.split(".") if at else ():
        path = (*path, int(key)) if key.isdecimal() and (*path, int(key)) in document.values else (*path, key)
    return path


def _locate(root: SchemaNode, loc: tuple[str | int, ...]) -> tuple[Path, SchemaNode]:
    """The key path of an error, and the section that holds its last key. Drops the tags pydantic puts into unions."""
    path: Path = ()
    section = place = root
    for step in loc:
        if step in place.variants:
            section = place = place.variant(str(step))
            continue
        if step in (ONE_SIZE, SIZES):
            continue
        section, place = place, place.child(step)
        path = (*path, step)
    return path, section


def _explain_value(detail: ErrorDetails, path: Path, section: SchemaNode, document: Document) -> Problem:
    name, kind, got = _dotted(path), detail["type"], detail["input"]
    place = section.child(path[-1]) if path else section
    expected = place.describe()
    if kind == "missing":
        holder = path[:-1]
        return Problem(document.at_key(holder), f"{name} is missing; expected {expected}")
    if kind == "union_tag_not_found" and isinstance(got, dict):
        return Problem(document.at_key(path), f"{name}.kind is missing; expected one of {', '.join(place.variants)}")
    if kind == "union_tag_invalid":
        got = got["kind"] if isinstance(got, dict) else got
        return _explain_choice((*path, "kind"), got, tuple(place.variants), document)
    if place.choices and kind == "literal_error":
        return _explain_choice(path, got, place.choices, document)
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        noun = "a size" if isinstance(place.node["type"], list) else place.describe_noun()
        expected = f"{noun} {words} {show_number(detail['ctx'][bound])}"
    elif kind == "string_pattern_mismatch":
        expected = "letters, digits, dots, underscores and hyphens, 64 at most, starting with a letter or digit"
    elif kind == "finite_number":
        expected = "a finite number"
    elif kind in _LENGTHS:
        bound, words = _LENGTHS[kind]
        what = f"{name} has {detail['ctx']['actual_length']} items; expected {words} {detail['ctx'][bound]}"
        return Problem(document.at_value(path), what)
    elif kind in _SECTION_TYPES and got is None:
        return Problem(document.at_key(path), f"{name} is empty; expected {expected}", _fix_indent(place))
    return Problem(document.at_value(path), f"{name} is {show(got)}; expected {expected}", _fix_type(got, place))


def _explain_choice(path: Path, got: Any, choices: tuple[str, ...], document: Document) -> Problem:
    like = nearest(got, choices) if isinstance(got, str) else None
    shown = ", ".join(choices[:_MAX_CHOICES])
    if len(choices) > _MAX_CHOICES:
        shown += f", ... {choices[-1]} ({len(choices)} in all)"
    expected = f"one of {shown}" if len(choices) > 1 else choices[0]
    text = f"{_dotted(path)} is {show(got)}; expected {expected}"
    return Problem(document.at_value(path), text, f'did you mean "{like}"?' if like else "")


def _fix_indent(place: SchemaNode) -> str:
    return "indent its keys under it" if place.keys else ""


def _fix_type(got: Any, place: SchemaNode) -> str:
    """What to do about a value of the wrong type, where that is plain."""
    kind = place.node.get("type")
    if place.variants and isinstance(got, str):
        like = nearest(got, tuple(place.variants))
        return f"write {{kind: {like or next(iter(place.variants))}}}"
    if kind == "string" and isinstance(got, int | float):
        return "put it in quotes"
    if kind == "integer" and isinstance(got, float) and got.is_integer():
        return f"write {int(got)}"
    if kind in ("integer", "number") and isinstance(got, str) and re.fullmatch(r"[0-9.eE+-]+", got):
        return "remove the quotes"
    if kind == "boolean" and isinstance(got, str) and got.lower() in ("true", "false"):
        return "remove the quotes"
    return ""


def _suggest_key(root: SchemaNode, section: SchemaNode, path: Path) -> tuple[str, set[Path]]:
    """What an unknown key was meant to be, and the paths that it would have filled."""
    key = str(path[-1])
    if key == "<<":
        return "merge keys are not supported: write the keys out", set()
    known = _FOREIGN_KEYS.get(key, key)
    here = known if known in section.keys else nearest(key, section.keys)
    elsewhere = sorted({other for other in root.walk() if other[-1] == known and other[:-1] != path[:-1]})
    meant: set[Path] = set()
    words = []
    if here:
        words.append(f'did you mean "{here}"?')
        meant.add((*path[:-1], here))
    if elsewhere and not (here and here == known):
        words.append(f'"{known}" is a key of {" and ".join(_dotted(other[:-1]) for other in elsewhere)}')
        meant.update(elsewhere[:1] if len(elsewhere) == 1 else ())
    if not words and section.keys:
        words.append(f"keys here are {', '.join(section.keys)}")
    return " ".join(words), meant


def _dotted(path: Path) -> str:
    text = ".".join(map(str, path)) or "the spec"
    return text if len(text) <= 200 else text[:197] + "..."
