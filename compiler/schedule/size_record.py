"""The base of the records of launch geometry: sizes, each with a public name, limits, and the values to tune.

A record is a frozen dataclass whose fields are sizes or other records. Inside the compiler a size is a field
(`geometry.one_row.outputs`). Users see one flat set of names (`matvec_outputs`): in the rules of `chips/*.yaml`, in
`plan.json` and `tuning.json`, and in `inspect`. Each field states its flat name; only this module translates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from mlxr.compiler.errors import PlanError


@dataclass(frozen=True)
class Values:
    """The tuner times each of these values of a size."""

    values: tuple[int, ...]


@dataclass(frozen=True)
class Variants:
    """For a size that decides which kernel runs: the tuner times each of these variants before it tunes their sizes.

    Attributes:
        changes: the sizes of each variant: a value of the field itself, and starting values of other fields of its
            record.
    """

    changes: tuple[Mapping[str, int], ...]


@dataclass(frozen=True)
class RowThreshold:
    """The tuner times both sides of a threshold, a number of rows from which another kernel runs, at several numbers.

    Attributes:
        shared: whether all quantised weights share one value, instead of one for each kind of launch.
    """

    shared: bool = False


Tuning = Values | Variants | RowThreshold


@dataclass(frozen=True)
class Size:
    """One size of the geometry, as its field describes it.

    Attributes:
        name: its flat name, such as `matvec_outputs`.
        least, most: its limits; None: no upper limit.
        one_of: the allowed values; empty: all within the limits.
        multiple_of: its value is a multiple of this number.
        reason: why its values are limited, in a few words at the end of the error message.
        tuning: how the tuner chooses it; None if it is not tuned.
    """

    name: str
    least: int
    most: int | None
    one_of: tuple[int, ...]
    multiple_of: int
    reason: str
    tuning: Tuning | None

    def check(self, value: int) -> None:
        """Refuses a value outside the limits.

        Raises:
            PlanError: the message names the size and the allowed values.
        """
        if self.one_of:
            allowed = value in self.one_of
        else:
            allowed = self.least <= value and (self.most is None or value <= self.most)
        if not allowed or value % self.multiple_of:
            raise PlanError(f"geometry: {self.name} is {value}; expected {self._expected}")

    @property
    def _expected(self) -> str:
        if self.one_of:
            *others, last = map(str, self.one_of)
            text = f"{', '.join(others)} or {last}"
        elif self.multiple_of > 1:
            text = f"a multiple of {self.multiple_of} up to {self.most}"
        else:
            text = f"at least {self.least}" if self.most is None else f"{self.least} to {self.most}"
        return f"{text}, {self.reason}" if self.reason else text


def size(
    name: str,
    default: int,
    *,
    least: int = 1,
    most: int | None = None,
    one_of: tuple[int, ...] = (),
    multiple_of: int = 1,
    reason: str = "",
    tuning: Tuning | None = None,
) -> int:
    """A field of a `SizeRecord`; see `Size` for the arguments. Type checkers see its default value."""
    return field(default=default, metadata={_SIZE: Size(name, least, most, one_of, multiple_of, reason, tuning)})


_SIZE = "size"


@dataclass(frozen=True)
class SizeRecord:
    """Base of the records. Each field is a call of `size`, or a record with its defaults.

    The constructor checks the sizes.

    Raises:
        PlanError: the message names the size and the allowed values.
    """

    def __post_init__(self) -> None:
        """Checks each size alone, then the sizes together."""
        for name, about in _own_sizes(type(self)).items():
            about.check(getattr(self, name))
        self.check_together()

    def check_together(self) -> None:
        """Refuses sizes that are allowed alone but not together; records with such sizes override it.

        Raises:
            PlanError: the message names the sizes and the allowed values.
        """

    @classmethod
    def sizes(cls) -> Mapping[str, Size]:
        """All sizes of the record and of its nested records, by flat name, in order."""
        return {about.name: about for _, about in _walk(cls)}

    @classmethod
    def names(cls, *of_fields: str) -> tuple[str, ...]:
        """The flat names of all sizes or, if field names are given, of the sizes in fields of these names."""
        return tuple(about.name for name, about in _walk(cls) if not of_fields or name in of_fields)

    @classmethod
    def variants(cls) -> Mapping[str, tuple[Mapping[str, int], ...]]:
        """The variants (see `Variants`) of each size that has any, with all sizes by flat name."""
        changes_of: dict[str, tuple[Mapping[str, int], ...]] = {}
        own = _own_sizes(cls)
        for about in own.values():
            if isinstance(about.tuning, Variants):
                changes = about.tuning.changes
                changes_of[about.name] = tuple({own[name].name: value for name, value in c.items()} for c in changes)
        for record in _own_records(cls).values():
            changes_of |= record.variants()
        return changes_of

    def flat(self) -> dict[str, int]:
        """The value of each size by flat name, nested records included."""
        values = {about.name: getattr(self, name) for name, about in _own_sizes(type(self)).items()}
        for name in _own_records(type(self)):
            values |= getattr(self, name).flat()
        return values

    def changed(self, sizes: Mapping[str, int]) -> Self:
        """A copy with other values for some sizes, by flat name; names that the record lacks are ignored.

        Raises:
            PlanError: no kernel supports these sizes.
        """
        changes: dict[str, Any] = {
            name: sizes[about.name] for name, about in _own_sizes(type(self)).items() if about.name in sizes
        }
        for name in _own_records(type(self)):
            record: SizeRecord = getattr(self, name)
            if (changed := record.changed(sizes)) is not record:
                changes[name] = changed
        return replace(self, **changes) if changes else self


def _own_sizes(record: type[SizeRecord]) -> Mapping[str, Size]:
    """The record's own sizes, by field."""
    return {entry.name: entry.metadata[_SIZE] for entry in fields(record) if _SIZE in entry.metadata}


def _own_records(record: type[SizeRecord]) -> Mapping[str, type[SizeRecord]]:
    """The types of the nested records, by field."""
    return {entry.name: type(entry.default) for entry in fields(record) if isinstance(entry.default, SizeRecord)}


def _walk(record: type[SizeRecord]) -> Iterator[tuple[str, Size]]:
    yield from _own_sizes(record).items()
    for other in _own_records(record).values():
        yield from _walk(other)
