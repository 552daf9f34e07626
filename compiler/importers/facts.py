"""What a file says of its model, read key by key. A key that was not read is judged by the family's rules."""

import math
import re
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.rules import Architecture, Kind, architectures, architectures_named
from mlxr.compiler.spec.explain import nearest, show
from mlxr.compiler.spec.import_rules import ImportRules

_MAX_LISTED = 8


class Facts:
    """The keys and values of a file. It remembers which keys were read, so each import needs its own.

    A dot in a key leads into a section, if the file has sections.
    """

    def __init__(
        self,
        source: str,
        values: Mapping[str, Any],
        rules: ImportRules,
        prefix: str = "",
        accepted: Collection[str] = (),
    ) -> None:
        """Makes the facts of a file.

        Args:
            source: what error messages call the file.
            values: plain data.
            rules: which keys need not be read.
            prefix: put before the keys that are asked for, and before those of `rules.neutral`.
            accepted: keys that change nothing according to the user; a dot leads into a section.
        """
        self.source = source
        self._accepted = accepted
        self.rules = rules
        self._values, self._prefix = values, prefix
        self._read: set[str] = set()
        self._sections: dict[str, Facts] = {}

    def get(self, key: str) -> Any:
        """The value of a key, or None where there is none. The key counts as read."""
        section, _, rest = key.partition(".")
        if rest and not self._prefix and isinstance(self._values.get(section), dict):
            return self.section(section).get(rest)
        self._read.add(self._prefix + key)
        return self._values.get(self._prefix + key)

    def has(self, key: str) -> bool:
        """Whether the file has a key, even if it is null."""
        section, _, rest = key.partition(".")
        if rest and not self._prefix and isinstance(self._values.get(section), dict):
            return self.section(section).has(rest)
        return self._prefix + key in self._values

    def section(self, key: str) -> "Facts":
        """The facts of a section; empty if there is no such section.

        Raises:
            SpecError: the key has a value that is not a section.
        """
        if key not in self._sections:
            value = self.get(key)
            if value is not None and not isinstance(value, dict):
                raise self.refuse(key, value, "a section")
            where = f"{self.source}: {self._prefix}{key}"
            self._sections[key] = Facts(where, value or {}, ImportRules(harmless=self.rules.harmless))
        return self._sections[key]

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number. A list with one number per layer counts as that number if all are equal.

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

    def scalar(self, key: str) -> Any:
        """A value; of a list of equal values, that value; None if the file does not say it.

        Raises:
            SpecError: it differs between layers.
        """
        value = self.get(key)
        if isinstance(value, list) and value:
            other = next((layer for layer, item in enumerate(value) if item != value[0]), None)
            if other is not None:
                raise SpecError(
                    f"{self.source}: {self._prefix}{key} is {show(value[0])} in layer 0 and {show(value[other])} in "
                    f"layer {other}; layers that differ in it are not supported"
                )
            value = value[0]
        return value

    def _scalar(self, key: str, default: object) -> Any:
        value = self.scalar(key)
        if value is None:
            value = default
        if value is None:
            raise self.missing(key)
        return value

    def missing(self, key: str) -> SpecError:
        """The error for a key that is required."""
        what = f"says nothing of {self._prefix}{key}, which a model cannot do without"
        return SpecError(f"{self.source}: {what}{self._reason(key)}")

    def refuse(self, key: str, value: object, expected: str) -> SpecError:
        """The error for a value that cannot be used."""
        return SpecError(f"{self.source}: {self._prefix}{key} is {show(value)}; expected {expected}{self._reason(key)}")

    def _reason(self, key: str) -> str:
        reason = self.rules.reasons.get(key)
        return f": {reason}" if reason else ""

    def check_all_read(self) -> None:
        """Refuses keys that were not read and may change the result.

        Raises:
            SpecError: there are such keys; the message has their names and values.
        """
        unread = self._unread()
        for key in self._accepted:
            if key not in unread and not self._is_unread(key):
                raise SpecError(
                    f"{self.source}: {key[:100]!a} is to be accepted, but the file has no such key, or it is one that "
                    "is applied: leave out --accept-key for it"
                )
        for key, value in unread.items():
            if key not in self._accepted and (reason := self._reason(key.removeprefix(self._prefix))):
                raise SpecError(f"{self.source}: {key} is {show(value)}{reason}")
        strange = [f"{key[:100]!a} = {show(value)}" for key, value in unread.items() if key not in self._accepted]
        if strange:
            more = f" and {len(strange) - _MAX_LISTED} more" if len(strange) > _MAX_LISTED else ""
            raise SpecError(
                f"{self.source}: {', '.join(strange[:_MAX_LISTED])}{more}: not supported, and it may change what the "
                "model computes; if you know that it does not, name it with --accept-key KEY"
            )

    def _is_unread(self, path: str) -> bool:
        """Whether the file has a key that nothing has asked for; a dot leads into a section."""
        section, _, rest = path.partition(".")
        if rest and section in self._sections:
            return self._sections[section]._is_unread(rest)
        return path in self._values and path not in self._read

    def _unread(self, path: str = "") -> dict[str, Any]:
        harmless = re.compile("|".join(f"(?:{pattern})" for pattern in self.rules.harmless), re.DOTALL)
        strange: dict[str, Any] = {}
        for key, value in self._values.items():
            if not isinstance(key, str) or not key.startswith(self._prefix) or key in self._read:
                continue
            name = key.removeprefix(self._prefix)
            neutral, one = self.rules.neutral.get(name), _of_all_layers(value)
            if not (harmless.fullmatch(name) if neutral is None else any(_same(one, same) for same in neutral)):
                strange[path + key] = value
        for name, section in self._sections.items():
            strange |= section._unread(f"{path}{name}.")
        return strange


def find_architecture(source: str, key: str, values: Mapping[str, Any], kind: Kind) -> Architecture:
    """The architecture that a file names under a key.

    Raises:
        SpecError: there is none of that name; the message lists all.
    """
    name = values.get(key)
    for candidate in architectures_named(kind, name) if isinstance(name, str) else ():
        only_with, only_where = candidate.rules.only_with, candidate.rules.only_where
        has_key = only_with is None or bool(_of_all_layers(values.get(f"{name}.{only_with}")))
        if has_key and all(values.get(own) in wanted for own, wanted in only_where.items()):
            return candidate
    all_of = architectures(kind)
    names = tuple(sorted({name for one in all_of for name in (one.name, *one.rules.wrappers)}))
    what = "is missing" if name is None else f"is {show(name)}; that is not supported"
    like = nearest(name, names) if isinstance(name, str) else None
    hint = f'; did the file mean "{like}"?' if like else ""
    raise SpecError(f"{source}: {key} {what}; supported: {', '.join(names)}{hint}")


def shortest_f32(value: float) -> float:
    """The shortest decimal that is the same number in f32, as people would write it: 1e-05 for 9.99999975e-06."""
    try:
        bits = struct.pack("f", value)
        for digits in range(1, 9):
            short = float(f"{value:.{digits}g}")
            if struct.pack("f", short) == bits:
                return short
    except OverflowError:
        pass
    return value


def _of_all_layers(value: Any) -> Any:
    """The one value that a list has for every layer; anything else as it is."""
    is_one = isinstance(value, list) and bool(value) and all(_same(item, value[0]) for item in value)
    return value[0] if is_one else value


def _same(value: object, neutral: object) -> bool:
    return type(value) is type(neutral) and value == neutral
