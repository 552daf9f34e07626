"""Tables for people."""

from collections.abc import Sequence

from mlxr.compiler.text import printable


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows, of which the first one is the heading, in columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
