"""Rows of weights that a block of a step kernel asks for launches before it multiplies them.

A kernel that copies all rows of a threadgroup to threadgroup memory (`MLXR_NEAR`) can have these in a place of their
own, and ask for them once the launch with weights before the last one has ended: while attention runs, say, memory
would be idle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RowsOfFunction:
    """What a function needs: threadgroup memory of all that a block runs at once; of it, rows that it can ask for."""

    all_bytes: int
    near_bytes: int


@dataclass(frozen=True)
class RowsAhead:
    """What is asked for ahead.

    Attributes:
        places: where each function that asks ahead has its rows, by its number.
        newer: what is asked for between a function's rows and the function, at least, by its number.
        asks: the launch whose rows are asked for after the first wait from a launch on, by this one's number.
        bytes: threadgroup memory of a block.
    """

    places: Mapping[int, int]
    newer: Mapping[int, int]
    asks: Mapping[int, int]
    bytes: int


def rows_ahead(
    functions: Sequence[RowsOfFunction], launches: Sequence[int], with_weights: Sequence[int], least: int, most: int
) -> RowsAhead:
    """What a program asks for ahead.

    Args:
        functions: the functions.
        launches: the function of each launch.
        with_weights: numbers of launches that read weights, always run, and wait for what came before, in order.
        least: threadgroup memory that a block has at least.
        most: threadgroup memory that it has at most.
    """
    numbers = {launch: i for i, launch in enumerate(with_weights)}
    begins = {launch: with_weights[i - 2] + 1 for launch, i in numbers.items() if i > 1}
    of = {f: [i for i, function in enumerate(launches) if function == f] for f in set(launches)}
    asking = [
        f
        for f, function in enumerate(functions)
        if function.near_bytes and all(i in begins and f not in launches[begins[i] : i] for i in of[f])
    ]
    while True:
        spans = {f: {row for i in of[f] for row in range(begins[i], i + 1)} for f in asking}
        sizes = [f.all_bytes - (f.near_bytes if i in asking else 0) for i, f in enumerate(functions)]
        during = {launches[row] for rows in spans.values() for row in rows}
        low = -(-max([least, *(sizes[f] for f in during)]) // 128) * 128
        places: dict[int, int] = {}
        for f in asking:
            beside = [other for other in places if spans[other] & spans[f]]
            places[f] = max([low, *(places[other] + functions[other].near_bytes for other in beside)])
        too_far = [f for f in asking if places[f] + functions[f].near_bytes > most]
        if not too_far:
            break
        asking.remove(too_far[0])
    asks = {begins[i]: i for f in asking for i in of[f]}
    newer = {f: min(sum(begins[i] < at <= i for at in asks) for i in of[f]) for f in asking}
    ends = [places[f] + functions[f].near_bytes for f in asking]
    return RowsAhead(places, newer, asks, max([least, *sizes, *ends]))
