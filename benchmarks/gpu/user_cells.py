"""The cells of a user row in the table."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu.user_rows import UserRow

USER_COLUMNS = (
    *("", "path", "MLXR", "p95", "llama.cpp", "ratio"),
    *("mlx-lm", "p95", "ratio", "of p95", "over seen", "gap"),
)


def user_cells(row: UserRow, measured: dict[str, Any], seen: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table: times of prompts in ms, decoding in tokens per second of all sequences.

    Args:
        row: the row.
        measured: what was measured.
        seen: for a row of unseen lengths, what was measured when they came again, if it was.
    """
    ours, theirs = measured["seconds"]["mlxr"], measured["seconds"]["mlx-lm"]
    gap = f"{measured['gap']:.2f}"
    if row.kind == "first":
        shown = [" / ".join(_ms(second) for second in times) for times in (ours, theirs)]
        return (row.id, "user", shown[0], "", "", "", shown[1], "", _ratio(ours[0], theirs[0]), "", "", gap)
    middle = [statistics.median(times) for times in (ours, theirs)]
    llama = statistics.median(measured["seconds"].get("llama.cpp") or [math.nan])
    beside = "" if math.isnan(llama) else _ratio(middle[0], llama)
    if row.within is None:
        sequences = row.work.batch if row.kind == "batch" else 1
        speeds = [_speed(sequences / seconds) for seconds in middle]
        shown_llama = _speed(sequences / llama) if beside else ""
        cells = (row.id, "user", speeds[0], "", shown_llama, beside)
        return (*cells, speeds[1], "", _ratio(*middle), "", "", gap)
    late = [percentile(times, 95) for times in (ours, theirs)]
    pairs = list(zip(ours, seen["seconds"]["mlxr"], strict=True)) if seen.get("lengths") == measured["lengths"] else []
    over = f"{statistics.median(new / old for new, old in pairs):.2f} x" if pairs else ""
    return (
        *(row.id, "user", _ms(middle[0]), _ms(late[0]), _ms(llama) if beside else "", beside),
        *(_ms(middle[1]), _ms(late[1])),
        *(_ratio(*middle), _ratio(*late), over, gap),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile, interpolated between neighbours."""
    return float(np.percentile(values, percent))


def _ratio(ours: float, theirs: float) -> str:
    return f"{theirs / ours:.2f} x"


def _ms(seconds: float) -> str:
    ms = 1e3 * seconds
    return f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"


def _speed(tokens_per_second: float) -> str:
    return f"{tokens_per_second:.3g}" if tokens_per_second < 100 else f"{tokens_per_second:.0f}"
