"""What a file says of its model, read key by key; what nobody read is refused unless it is known to change nothing."""

import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.rules import Rules
from mlxr.compiler.spec.explain import nearest, show

_MAX_LISTED = 8


class Facts:
    """The keys and values of a file. Not for use by several importers at once: it remembers what was read."""

    def __init__(self, source: str, values: Mapping[str, Any], rules: Rules, prefix: str = "") -> None:
        """Makes the facts of a file.

        Args:
            source: what error messages call the file.
            values: plain data.
            rules: what need not be read.
            prefix: stands before the keys that are asked for, and before those of `rules.neutral`.
        """
        self.source = source
        self._values, self._rules, self._prefix = values, rules, prefix
        self._read: set[str] = set()

    def get(self, key: str) -> Any:
        """The value of a key, or None where there is none. The key counts as read."""
        self._read.add(self._prefix + key)
        return self._values.get(self._prefix + key)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number. A list of equal ones, one for each layer, is that one.

        Raises:
            SpecError: it is missing and there is no default, is something else, or differs between layers.
        """
        value = self._scalar(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.refuse(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number.

        Raises:
            SpecError: as `integer`.
        """
        value = self._scalar(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                if math.isfinite(number := float(value)):
                    return number
            except OverflowError:
                pass
        raise self.refuse(key, value, "a number")

    def flag(self, key: str, default: bool) -> bool:
        """True or false.

        Raises:
            SpecError: it is something else.
        """
        value = self._scalar(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, value, "true or false")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of some words.

        Raises:
            SpecError: it is missing and there is no default, or is another word.
        """
        value = self._scalar(key, default)
        if value not in choices:
            raise self.refuse(key, value, f"one of {', '.join(choices)}")
        return str(value)

    def _scalar(self, key: str, default: object) -> Any:
        value = self.get(key)
        if isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise SpecError(
                    f"{self.source}: {self._prefix}{key} differs between layers ({show(value[0])} and others); "
                    "models whose layers differ are not supported"
                )
            value = value[0]
        if value is None:
            value = default
        if value is None:
            raise SpecError(f"{self.source}: says nothing of {self._prefix}{key}, which a model cannot do without")
        return value

    def refuse(self, key: str, value: object, expected: str) -> SpecError:
        """The error for a value that cannot be used."""
        return SpecError(f"{self.source}: {self._prefix}{key} is {show(value)}; expected {expected}")

    def check_all_read(self) -> None:
        """Refuses keys that nobody read and that may change the result.

        Raises:
            SpecError: naming them and their values.
        """
        harmless = re.compile("|".join(f"(?:{pattern})" for pattern in self._rules.harmless), re.DOTALL)
        strange = []
        for key, value in self._values.items():
            if key in self._read or harmless.fullmatch(key):
                continue
            neutral = self._rules.neutral.get(key.removeprefix(self._prefix), ())
            if not any(_same(value, one) for one in neutral):
                strange.append(f"{key[:100]!a} = {show(value)}")
        if strange:
            more = f" and {len(strange) - _MAX_LISTED} more" if len(strange) > _MAX_LISTED else ""
            raise SpecError(
                f"{self.source}: {', '.join(strange[:_MAX_LISTED])}{more}: not supported, and it may change what the "
                "model computes; if it does not, write a spec by hand and name these weights with --weights"
            )


def find_architecture(source: str, key: str, name: object, rules: Rules) -> str:
    """The weight-name map for what a file calls its architecture.

    Raises:
        SpecError: there is none; the message lists those there are.
    """
    known = tuple(rules.architectures)
    if isinstance(name, str) and name in known:
        return rules.architectures[name]
    what = "does not say" if name is None else f"is {show(name)}; that is not supported"
    like = nearest(name, known) if isinstance(name, str) else None
    hint = f'; did the file mean "{like}"?' if like else ""
    raise SpecError(f"{source}: {key} {what}; supported: {', '.join(known)}{hint}")


def shortest_f32(value: float) -> float:
    """The decimal that people would have written for a number that a file holds as f32: 1e-05 for 9.99999975e-06."""
    try:
        bits = struct.pack("f", value)
        for digits in range(1, 9):
            short = float(f"{value:.{digits}g}")
            if struct.pack("f", short) == bits:
                return short
    except OverflowError:
        pass
    return value


def _same(value: object, neutral: object) -> bool:
    return type(value) is type(neutral) and value == neutral
