"""What the records of launch geometry are made of: sizes, each with a public name, limits, and what the tuner tries.

A record is a frozen dataclass whose fields are sizes or other records. Inside the compiler a size is a field
(`geometry.one_row.outputs`). Users see one flat set of names: rules in `chips/*.yaml`, `plan.json`, `tuning.json` and
`inspect` say `matvec_outputs`. Each field states its flat name, and this module alone translates between the two.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from mlxr.compiler.errors import PlanError


@dataclass(frozen=True)
class Values:
    """How the tuner chooses a size: it times each of these values."""

    values: tuple[int, ...]


@dataclass(frozen=True)
class Variants:
    """How the tuner chooses a size that decides which kernel runs: before the sizes that this kernel has.

    Attributes:
        changes: each variant gives a value to the field itself and, to start from, to other fields of its record.
    """

    changes: tuple[Mapping[str, int], ...]


@dataclass(frozen=True)
class RowThreshold:
    """How the tuner chooses a number of rows from which something else runs: it times both sides at several numbers.

    Attributes:
        shared: one value for all quantised weights instead of one for each kind of launch.
    """

    shared: bool = False


Tuning = Values | Variants | RowThreshold


@dataclass(frozen=True)
class Size:
    """One size of the geometry: what its field says of it.

    Attributes:
        name: its flat name, `matvec_outputs` say.
        least, most: its limits; None: no upper limit.
        one_of: the values that it may have; empty: all within the limits.
        multiple_of: what its value must be a multiple of.
        reason: why its values are limited so, in a few words at the end of the message.
        tuning: how the tuner chooses it; None: it does not.
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
            PlanError: naming the size and what it may be.
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
    """A field of a `SizeRecord`; see `Size` for the arguments. Type checkers take it for its default."""
    return field(default=default, metadata={_SIZE: Size(name, least, most, one_of, multiple_of, reason, tuning)})


_SIZE = "size"


@dataclass(frozen=True)
class SizeRecord:
    """Base of the records. Each field is made by `size`, or is a record with its defaults.

    Making one checks it.

    Raises:
        PlanError: naming a size and what it may be.
    """

    def __post_init__(self) -> None:
        """Checks each size alone, then what sizes must be together."""
        for name, about in _own_sizes(type(self)).items():
            about.check(getattr(self, name))
        self.check_together()

    def check_together(self) -> None:
        """Refuses sizes that each may be but not together; records that have such sizes override it.

        Raises:
            PlanError: naming them and what they may be.
        """

    @classmethod
    def sizes(cls) -> Mapping[str, Size]:
        """All sizes of the record and of the records in it, by flat name, in order."""
        return {about.name: about for _, about in _walk(cls)}

    @classmethod
    def names(cls, *of_fields: str) -> tuple[str, ...]:
        """The flat names of all sizes; of those alone whose fields have one of these names, where any is given."""
        return tuple(about.name for name, about in _walk(cls) if not of_fields or name in of_fields)

    @classmethod
    def variants(cls) -> Mapping[str, tuple[Mapping[str, int], ...]]:
        """The changes of each size that chooses a variant (see `Variants`), all by flat names."""
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
        """The value of each size by flat name, those of the records in it too."""
        values = {about.name: getattr(self, name) for name, about in _own_sizes(type(self)).items()}
        for name in _own_records(type(self)):
            values |= getattr(self, name).flat()
        return values

    def changed(self, sizes: Mapping[str, int]) -> Self:
        """The same with other values for some sizes, by flat name; names of other records are ignored.

        Raises:
            PlanError: no kernel is made for these sizes.
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
    """The sizes of a record itself, by field."""
    return {entry.name: entry.metadata[_SIZE] for entry in fields(record) if _SIZE in entry.metadata}


def _own_records(record: type[SizeRecord]) -> Mapping[str, type[SizeRecord]]:
    """The types of the records in a record, by field."""
    return {entry.name: type(entry.default) for entry in fields(record) if isinstance(entry.default, SizeRecord)}


def _walk(record: type[SizeRecord]) -> Iterator[tuple[str, Size]]:
    yield from _own_sizes(record).items()
    for other in _own_records(record).values():
        yield from _walk(other)
