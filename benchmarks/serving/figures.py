"""What was measured: figures by row and engine, what each row must reach, and how both are shown."""

import json
import os
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

_COLUMNS = ("", "MLXR", "against", "", "ratio", "must be", "")
_DIGITS = {"tokens/s": 0, "ms": 1, "us": 0}


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        name: what was measured, of which model.
        unit: of the figures: `tokens/s`, `ms` or `us`.
        ours: the series of MLXR's figures.
        against: the series that they are compared with; the best of several counts. None: the figure stands alone.
        must: what the ratio `ours / against` must be, or the figure itself where it stands alone.
    """

    name: str
    unit: Literal["tokens/s", "ms", "us"]
    ours: str
    against: tuple[str, ...] = ()
    must: tuple[Literal[">=", "<="], float] | None = None

    def reaches(self, value: float) -> bool:
        """Whether a ratio, or a figure that stands alone, is what it must be."""
        if self.must is None:
            return True
        sign, limit = self.must
        return value >= limit if sign == ">=" else value <= limit


class Figures:
    """Figures of all rounds, by row and series."""

    def __init__(self) -> None:
        self.load_before = os.getloadavg()[0]
        """Processes that wanted a CPU before the run: they slow every figure down."""
        self.rows: dict[str, Row] = {}
        self.series: dict[str, dict[str, list[float]]] = {}
        self.versions: dict[str, str] = {}
        self.failures: list[str] = []
        self.notes: list[str] = []

    def add(self, row: Row, series: str, value: float) -> None:
        """Adds one round's figure."""
        self.rows[row.name] = row
        self.series.setdefault(row.name, {}).setdefault(series, []).append(value)

    def compared(self, row: Row) -> tuple[float, str, float, float] | None:
        """Medians of a row: ours, the best other series and its figure, and the ratio; None if there is no such figure.

        The ratio is the median of the rounds' ratios where both have as many rounds, for rounds are interleaved.
        """
        series = self.series[row.name]
        ours = series.get(row.ours)
        if not ours:
            return None
        best = max if row.unit == "tokens/s" else min
        others = {name: statistics.median(series[name]) for name in row.against if series.get(name)}
        if not others:
            return statistics.median(ours), "", float("nan"), float("nan")
        name = best(others, key=lambda series_name: others[series_name])
        theirs = series[name]
        if len(theirs) == len(ours):
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        else:
            ratio = statistics.median(ours) / others[name]
        return statistics.median(ours), name, others[name], ratio

    def missed(self) -> list[str]:
        """Names of the rows that are not what they must be."""
        return [row.name for row in self.rows.values() if self._verdict(row) == "MISSED"]

    def _verdict(self, row: Row) -> str:
        medians = self.compared(row)
        if row.must is None or medians is None or (row.against and not medians[1]):
            return ""
        return "ok" if row.reaches(medians[3] if row.against else medians[0]) else "MISSED"

    def cells(self) -> list[tuple[str, ...]]:
        """The table, its head first."""
        lines = [_COLUMNS]
        for row in self.rows.values():
            if medians := self.compared(row):
                ours, name, theirs, ratio = medians
                shown = (_show(theirs, row.unit), f"{ratio:.3f}") if name else ("", "")
                must = f"{row.must[0]} {row.must[1]:g}" if row.must else ""
                lines.append((row.name, _show(ours, row.unit), name, *shown, must, self._verdict(row)))
        return lines

    def table(self) -> str:
        """The table as text."""
        cells = self.cells()
        widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
        )

    def markdown(self) -> str:
        """The table in Markdown."""
        head, *lines = ["| " + " | ".join(line) + " |" for line in self.cells()]
        return "\n".join([head, "|---" * len(_COLUMNS) + "|", *lines])

    def write(self, path: Path, machine: str) -> None:
        """Writes all figures as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = vars(self) | {"rows": [asdict(row) for row in self.rows.values()]}
        path.write_text(json.dumps({"machine": machine} | content, indent=1) + "\n", encoding="utf-8")


def _show(value: float, unit: str) -> str:
    return f"{value:.{_DIGITS[unit]}f} {unit}"
