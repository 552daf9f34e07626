"""Results: one JSON file that several runs fill, and what is made of it: a table, and a picture."""

import datetime
import json
import re
import statistics
from pathlib import Path
from typing import Any

from gpu.work import MODELS, Row, rows_of

ENGINES = ("mlxr", "mlx-lm", "torch")
_COLUMNS = ("", "MLXR", "of limit", "mlx-lm", "ratio", "torch", "ratio", "paged", "unpacking", "limit", "error")


class Results:
    """The rows so far. The file is written after each change."""

    def __init__(self, path: Path, resumed: Path | None = None) -> None:
        """Goes on with a file.

        Args:
            path: the JSON file.
            resumed: another one to begin with, if there is none at `path`.

        Raises:
            SystemExit: the file is no such file.
        """
        self.path = path
        self.data: dict[str, Any] = {"machine": {}, "runs": [], "rows": {}, "failures": {}, "doing": None}
        source = path if path.is_file() else resumed
        if source is not None:
            try:
                self.data |= json.loads(source.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise SystemExit(f"{source} cannot be gone on with: {error}") from error

    def start(self, machine: dict[str, str], command: str) -> None:
        """Notes a run.

        Raises:
            SystemExit: the rows so far are another machine's.
        """
        if self.data["rows"] and self.data["machine"].get("device") != machine["device"]:
            raise SystemExit(
                f"{self.path} has rows of {self.data['machine'].get('device')}, this is {machine['device']}: times of "
                "different devices make no table; name another --output"
            )
        self.data["machine"] = machine
        self.data["runs"].append({"date": datetime.date.today().isoformat(), "command": command})
        self._write()

    def begin(self, row: Row) -> None:
        """Notes that a row is being measured, for who finds that the process has died."""
        self.data["doing"] = row.id
        self._write()

    def add(self, row: Row, found: dict[str, Any]) -> None:
        """Adds a row's times."""
        self.data["rows"][row.id] = found
        self.data["failures"].pop(row.id, None)
        self.data["doing"] = None
        self._write()

    def fail(self, row: Row, why: str) -> None:
        """Notes that a row has no times: an old result of it goes too."""
        self.data["rows"].pop(row.id, None)
        self.data["failures"][row.id] = re.sub(r"(?:/[^\s/:]+)+/", "", why)  # folders mean nothing elsewhere
        self.data["doing"] = None
        self._write()

    def has(self, row: Row) -> bool:
        """Whether a row was measured."""
        return row.id in self.data["rows"]

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staging = self.path.with_suffix(".part")
        staging.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        staging.replace(self.path)

    def seconds(self, row: Row, engine: str) -> float | None:
        """The median of an engine's rounds: of a step, of a prompt, or to the first token."""
        times = self.data["rows"].get(row.id, {}).get("seconds", {}).get(engine)
        return statistics.median(times) if times else None

    def limit(self, row: Row) -> float | None:
        """The row's floor in seconds, by what copies and products reached in the same minutes."""
        found = self.data["rows"].get(row.id, {})
        if "copy_bytes_per_second" not in found:
            return None
        rates = (statistics.median(found[name]) for name in ("copy_bytes_per_second", "operations_per_second"))
        return row.floor_seconds(*rates)

    def cells(self, row: Row) -> tuple[str, ...]:
        """A row of the table; its columns are those of `table`."""
        ours, theirs, torch = (self.seconds(row, engine) for engine in ENGINES)
        paged, unpacking, limit = self.seconds(row, "mlxr-paged"), self.seconds(row, "mlxr-unpacking"), self.limit(row)
        assert ours is not None, f"{row.id} was measured"
        error = self.data["rows"][row.id].get("error")
        return (
            row.id,
            _speed(row, ours),
            f"{100 * limit / ours:.0f} %" if limit else "",
            _speed(row, theirs),
            f"{theirs / ours:.2f} x" if theirs else "",
            _speed(row, torch),
            f"{torch / ours:.2f} x" if torch else "",
            f"{paged / ours:.3f}" if paged else "",
            f"{theirs / unpacking:.2f} x" if theirs and unpacking else "",
            _speed(row, limit),
            f"{error:.1e}" if error is not None else "",
        )

    def line(self, row: Row) -> str:
        """A row in one line."""
        return "  ".join(f"{name} {cell}".strip() for name, cell in zip(_COLUMNS, self.cells(row), strict=True) if cell)

    def rows(self) -> list[Row]:
        """Measured rows in the order of the table."""
        return [row for model in MODELS for row in rows_of(model) if self.has(row)]

    def table(self) -> str:
        """All rows as text."""
        rows = [_COLUMNS, *(self.cells(row) for row in self.rows())]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        aligned = [
            [c.ljust(w) if not i else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
            for row in rows
        ]
        lines = ["  ".join(row).rstrip() for row in aligned]
        failed = [f"{name}: {why}" for name, why in self.data["failures"].items()]
        return "\n".join([self.heading(), *lines, *(["", "Not measured:", *failed] if failed else []), ""])

    def heading(self) -> str:
        """Machine and ceilings."""
        machine = ", ".join(self.data["machine"].values())
        rows = self.data["rows"].values()
        copies = [rate for row in rows for rate in row.get("copy_bytes_per_second", [])]
        products = [rate for row in rows for rate in row.get("operations_per_second", [])]
        if not copies:
            return machine
        return (
            f"{machine}; copies {statistics.median(copies) / 1e12:.2f} TB/s, bf16 products "
            f"{statistics.median(products) / 1e12:.0f} TFLOP/s"
        )

    def markdown(self) -> str:
        """The table for a document."""
        lines = [self.heading(), "", "| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
        return "\n".join([*lines, *("| " + " | ".join(self.cells(row)) + " |" for row in self.rows())]) + "\n"


def _speed(row: Row, seconds: float | None) -> str:
    """Tokens per second of all sequences, or seconds."""
    if seconds is None:
        return ""
    if row.kind == "first-token":
        return f"{seconds:.1f} s"
    speed = row.tokens_per_turn / seconds
    return f"{speed:.3g}" if speed < 100 else f"{speed:.0f}"
