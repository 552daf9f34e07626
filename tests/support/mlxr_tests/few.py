"""Tables of cases of which `make test` runs a few, and `make test-all` all.

    @pytest.mark.parametrize("case", few(CASES, CASES[::5]), ids=str)
    @pytest.mark.parametrize(("format", "activation"), few_of(FORMATS, ["f16", "bf16"]))

The others get the marker `long`. tests/README.md says which those may be.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import pytest

C = TypeVar("C")


def few(cases: Iterable[Any], short: Collection[Any], *, whole: bool = False) -> list[Any]:
    """Parameters for all cases; those that are not among `short` are long.

    Args:
        cases: a value each, or a tuple of values.
        short: some of the cases.
        whole: a tuple is one value, as of a fixture.
    """
    every = list(cases)
    unknown = [case for case in short if case not in every]
    assert not unknown, f"no cases: {unknown}"
    assert short or not every, "a test of which `make test` runs no case is a long one: mark it so"
    parameters = []
    for case in every:
        values = case if isinstance(case, tuple) and not whole else (case,)
        parameters.append(pytest.param(*values, marks=[] if case in short else [pytest.mark.long]))
    return parameters


def covering(cases: Sequence[C], values_of: Callable[[C], Iterable[object]]) -> list[C]:
    """Few of the cases, in which each value that any of them has occurs, at the same place among its case's values."""
    values = {index: set(enumerate(values_of(case))) for index, case in enumerate(cases)}
    missing, chosen = set[object]().union(*values.values()), list[C]()
    while missing:
        best = max(values, key=lambda index: (len(values[index] & missing), -index))
        missing -= values[best]
        chosen.append(cases[best])
    return chosen


def few_of(*axes: Iterable[Any]) -> list[Any]:
    """Parameters for every combination of one value of each axis; a few in which each value occurs are not long."""
    every = list(itertools.product(*axes))
    return few(every, covering(every, lambda case: case))
