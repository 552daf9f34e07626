"""Finds the op kinds of `compiler/ir/ops`, and reads their attributes from files."""

import functools
import importlib
import pkgutil
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
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
    """The op kind of that name with these attributes, as a file has them.

    Raises:
        RuleError: there is no such kind, an attribute is missing or unknown, or a value is of the wrong type.
    """
    kind = op_kinds().get(name)
    if kind is None:
        raise RuleError(f"unknown kind {name!r}; known: {', '.join(sorted(op_kinds()))}")
    readers = _readers(name)
    if attributes.keys() != readers.keys():
        raise RuleError(f"attributes are {sorted(attributes)}; expected {sorted(readers)}")
    return kind(**{field: readers[field](field, value) for field, value in attributes.items()})


Reader = Callable[[str, Any], Any]
"""Called with the name and the value of an attribute; returns the value in its own type, or raises RuleError."""


@functools.cache
def _readers(name: str) -> dict[str, Reader]:
    kind = op_kinds()[name]
    hints = typing.get_type_hints(kind)
    return {field.name: _reader(hints[field.name]) for field in fields(kind)}


def _reader(hint: Any) -> Reader:
    options = typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else (hint,)
    (plain,) = (option for option in options if option is not NoneType)
    optional = NoneType in options

    def read(name: str, value: Any) -> Any:
        if value is None and optional:
            return None
        if not _is_a(plain, value):
            raise RuleError(f"attribute {name} is {value!r}; expected {_expected(plain)}")
        return DType(value) if plain is DType else value

    return read


def _is_a(hint: Any, value: Any) -> bool:
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if hint is DType:
        return value in tuple(DType)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


def _expected(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(typing.get_args(hint))}"
    if hint is DType:
        return f"one of {', '.join(DType)}"
    return {int: "a whole number", float: "a number", bool: "true or false"}[hint]
