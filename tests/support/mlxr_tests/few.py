"""Tables of cases: `make test` runs a few of them, `make test-all` runs all.

    @pytest.mark.parametrize("case", few(CASES, CASES[::5]), ids=str)
    @pytest.mark.parametrize(("format", "activation"), few_of(FORMATS, ["f16", "bf16"]))

The other cases get the marker `long`. tests/README.md says which cases may have it.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

C = TypeVar("C")


def few(cases: Iterable[Any], short: Collection[Any], *, whole: bool = False) -> list[Any]:
    """Parameters for all cases; cases that are not in `short` are long.

    Args:
        cases: a value for each case, or a tuple of values.
        short: some of the cases.
        whole: whether a tuple is a single value, as for a fixture.
    """
    every = list(cases)
    unknown = [case for case in short if case not in every]
    assert not unknown, f"no cases: {unknown}"
    assert short or not every, "`make test` would run no case of this test; mark the whole test as long"
    parameters = []
    for case in every:
        values = case if isinstance(case, tuple) and not whole else (case,)
        parameters.append(pytest.param(*values, marks=[] if case in short else [pytest.mark.long]))
    return parameters


def covering(cases: Sequence[C], values_of: Callable[[C], Iterable[object]]) -> list[C]:
    """A few of the cases that together have every value that any case has, at the same position."""
    values = {index: set(enumerate(values_of(case))) for index, case in enumerate(cases)}
    missing, chosen = set[object]().union(*values.values()), list[C]()
    while missing:
        best = max(values, key=lambda index: (len(values[index] & missing), -index))
        missing -= values[best]
        chosen.append(cases[best])
    return chosen


def few_of(*axes: Iterable[Any]) -> list[Any]:
    """Parameters for every combination of the axes' values; a few that cover each value are not long."""
    every = list(itertools.product(*axes))
    return few(every, covering(every, lambda case: case))


def examples(all_of_them: int, short: int) -> int:
    """How many examples hypothesis draws: few in a short test, which draws the same each time."""
    return short if settings.default is not None and settings.default.derandomize else all_of_them
