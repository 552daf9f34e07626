"""Finds the op kinds of `compiler/ir/ops`, and reads their attributes from files."""

import functools
import importlib
import pkgutil
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir import ops
from mlxr.compiler.ir.checks import RuleError
from mlxr.compiler.ir.op_kind import OpKind


@functools.cache
def op_kinds() -> dict[str, type[OpKind]]:
    """Every op kind by name, in the order of their modules."""
    kinds: dict[str, type[OpKind]] = {}
    for info in pkgutil.iter_modules(ops.__path__, f"{ops.__name__}."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and issubclass(value, OpKind) and "name" in vars(value):
                assert kinds.setdefault(value.name, value) is value, f"two op kinds are named {value.name}"
    return kinds


def read_op_kind(name: str, attributes: Mapping[str, Any]) -> OpKind:
    """The op kind of that name, with attributes from a file.

    Raises:
        RuleError: there is no such kind, an attribute is missing or unknown, or a value is of the wrong type.
    """
    kind = op_kinds().get(name)
    if kind is None:
        raise RuleError(f"unknown kind {name!r}; known: {', '.join(sorted(op_kinds()))}")
    checks = _checks(name)
    if attributes.keys() != checks.keys():
        raise RuleError(f"attributes are {sorted(attributes)}; expected {sorted(checks)}")
    values = dict(attributes)
    for field, check in checks.items():
        value = values[field]
        if type(value) not in check.types or (check.choices is not None and value not in check.choices):
            raise RuleError(f"attribute {field} is {value!r}; expected {check.expected}")
        if check.choices is not None:
            values[field] = check.choices[value]
    return kind(**values)


@dataclass(frozen=True)
class _Check:
    """The values that an attribute may have in a file.

    Attributes:
        types: the types of the values.
        choices: each allowed value, with its value in the op kind; None if any value of those types is allowed.
        expected: the same in words.
    """

    types: tuple[type, ...]
    choices: Mapping[str | None, str | None] | None
    expected: str


@functools.cache
def _checks(name: str) -> dict[str, _Check]:
    kind = op_kinds()[name]
    hints = typing.get_type_hints(kind)
    return {field.name: _check(hints[field.name]) for field in fields(kind)}


_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "text"),
}


def _check(hint: Any) -> _Check:
    options = typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else (hint,)
    (plain,) = (option for option in options if option is not NoneType)
    types: tuple[type, ...] = (NoneType,) if NoneType in options else ()
    if plain in _PLAIN:
        plain_types, expected = _PLAIN[plain]
        return _Check((*types, *plain_types), None, expected)
    assert plain is DType or typing.get_origin(plain) is Literal, f"no rule reads attributes of type {hint}"
    names: list[str] = list(DType) if plain is DType else list(typing.get_args(plain))
    choices: dict[str | None, str | None] = {name: name for name in names}
    if types:
        choices[None] = None
    return _Check((*types, str, DType), choices, f"one of {', '.join(names)}")
