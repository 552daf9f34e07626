"""Results: a JSON file that several runs fill, and the two tables and the picture that show it."""

import datetime
import json
import re
import statistics
from pathlib import Path
from typing import Any

from gpu.user_cells import USER_COLUMNS, user_cells
from gpu.user_rows import UserRow, user_rows_of
from gpu.work import MODELS, Row, rows_of

ENGINES = ("mlxr", "mlx-lm", "torch")
_COLUMNS = ("", "path", "MLXR", "of limit", "mlx-lm", "ratio", "torch", "ratio", "paged", "unpacking", "limit", "error")


class Results:
    """The rows so far. The file is written after each change."""

    def __init__(self, path: Path, resumed: Path | None = None) -> None:
        """Continues a file.

        Args:
            path: the JSON file.
            resumed: another one to begin with, if there is none at `path`.

        Raises:
            SystemExit: the file is not one of results.
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

    def begin(self, row: Row | UserRow) -> None:
        """Notes that a row is being measured, in case the process dies."""
        self.data["doing"] = row.id
        self._write()

    def add(self, row: Row | UserRow, result: dict[str, Any]) -> None:
        """Adds a row's times."""
        self.data["rows"][row.id] = result
        self.data["failures"].pop(row.id, None)
        self.data["doing"] = None
        self._write()

    def fail(self, row: Row | UserRow, why: str) -> None:
        """Notes that a row has no times, and removes an old result of it."""
        self.data["rows"].pop(row.id, None)
        self.data["failures"][row.id] = re.sub(r"(?:/[^\s/:]+)+/", "", why)  # folders mean nothing elsewhere
        self.data["doing"] = None
        self._write()

    def has(self, row: Row | UserRow) -> bool:
        """Whether a row was measured."""
        return row.id in self.data["rows"]

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staging = self.path.with_suffix(".part")
        staging.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        staging.replace(self.path)

    def seconds(self, row: Row | UserRow, engine: str) -> float | None:
        """The median of an engine's rounds or prompts: of a step, of a prompt, or to the first token."""
        times = self.data["rows"].get(row.id, {}).get("seconds", {}).get(engine)
        return statistics.median(times) if times else None

    def limit(self, row: Row) -> float | None:
        """The row's floor in seconds, by the rates that copies and products reached in the same minutes."""
        result = self.data["rows"].get(row.id, {})
        if "copy_bytes_per_second" not in result:
            return None
        rates = (statistics.median(result[name]) for name in ("copy_bytes_per_second", "operations_per_second"))
        return row.floor_seconds(*rates)

    def cells(self, row: Row) -> tuple[str, ...]:
        """A row of the engine's table; its columns are those of `table`."""
        ours, theirs, torch = (self.seconds(row, engine) for engine in ENGINES)
        paged, unpacking, limit = self.seconds(row, "mlxr-paged"), self.seconds(row, "mlxr-unpacking"), self.limit(row)
        assert ours is not None, f"{row.id} was measured"
        error = self.data["rows"][row.id].get("error")
        return (
            row.id,
            "engine",
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

    def user_cells(self, row: UserRow) -> tuple[str, ...]:
        """A row of the users' table."""
        seen = self.data["rows"].get(UserRow(row.model, row.format, "seen", row.within).id, {})
        return user_cells(row, self.data["rows"][row.id], seen if row.kind == "unseen" else {})

    def line(self, row: Row | UserRow) -> str:
        """A row as one line of text."""
        columns, cells = (
            (USER_COLUMNS, self.user_cells(row)) if isinstance(row, UserRow) else (_COLUMNS, self.cells(row))
        )
        return "  ".join(f"{name} {cell}".strip() for name, cell in zip(columns, cells, strict=True) if cell)

    def rows(self) -> list[Row]:
        """Measured rows of the engine, in the order of the table."""
        return [row for model in MODELS for row in rows_of(model) if self.has(row)]

    def user_rows(self) -> list[UserRow]:
        """Measured rows of users, in the order of the table."""
        return [row for model in MODELS for row in user_rows_of(model) if self.has(row)]

    def _tables(self) -> list[list[tuple[str, ...]]]:
        """Tables with their heads: the users' and the engine's. A table without rows is left out."""
        users = [self.user_cells(row) for row in self.user_rows()]
        engine = [self.cells(row) for row in self.rows()]
        return [[head, *rows] for head, rows in ((USER_COLUMNS, users), (_COLUMNS, engine)) if rows]

    def table(self) -> str:
        """All rows as text."""
        failed = [f"{name}: {why}" for name, why in self.data["failures"].items()]
        tables = ["\n".join(_aligned(rows)) for rows in self._tables()]
        return (
            "\n\n".join([self.heading(), *tables, *(["\n".join(["Not measured:", *failed])] if failed else [])]) + "\n"
        )

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
        """The tables for a document."""
        parts = [self.heading()]
        for head, *rows in self._tables():
            lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
            parts.append("\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]))
        return "\n\n".join(parts) + "\n"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust, *[str.rjust] * (len(widths) - 1)]
    return ["  ".join(side(c, w) for side, c, w in zip(sides, row, widths, strict=True)).rstrip() for row in rows]


def _speed(row: Row, seconds: float | None) -> str:
    """Tokens per second of all sequences, or seconds."""
    if seconds is None:
        return ""
    if row.kind == "first-token":
        return f"{seconds:.1f} s"
    speed = row.tokens_per_turn / seconds
    return f"{speed:.3g}" if speed < 100 else f"{speed:.0f}"
