"""Two nested records compared field by field."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from mlxr.compiler.spec.record import Record

Json = Any
"""A value of JSON: null, a number, text, a list or a section."""
Change = Literal["added", "removed", "changed"]
"""What happened on the way from A to B."""
_MOST_SHOWN = 60


class FieldChange(Record):
    """A field that differs.

    Attributes:
        path: its keys, with dots between them.
        change: `added`: only B has it; `removed`: only A has it.
        a, b: its values; null where it is missing.
    """

    path: str
    change: Change
    a: Json = None
    b: Json = None

    def __str__(self) -> str:
        """For people: `model.context: 1024 -> 2048`."""
        before = "not there" if self.change == "added" else shown(self.a)
        after = "not there" if self.change == "removed" else shown(self.b)
        return f"{self.path}: {before} -> {after}"


def field_changes(a: Mapping[str, Json], b: Mapping[str, Json]) -> tuple[FieldChange, ...]:
    """The fields that differ, in A's order, then those that only B has. Lists are compared as a whole."""
    return tuple(_changes(a, b, ""))


def _changes(a: Mapping[str, Json], b: Mapping[str, Json], prefix: str) -> Iterator[FieldChange]:
    for key in {**a, **b}:
        path = f"{prefix}{key}"
        if key not in b:
            yield FieldChange(path=path, change="removed", a=a[key])
        elif key not in a:
            yield FieldChange(path=path, change="added", b=b[key])
        elif isinstance(a[key], Mapping) and isinstance(b[key], Mapping):
            yield from _changes(a[key], b[key], f"{path}.")
        elif a[key] != b[key] or isinstance(a[key], bool) != isinstance(b[key], bool):
            yield FieldChange(path=path, change="changed", a=a[key], b=b[key])


def shown(value: Json) -> str:
    """A value for people, cut to a readable length; text stands as it is."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
