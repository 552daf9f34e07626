"""What `mlxr fit` prints: a table for each machine, and JSON."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from mlxr.compiler.text import counted, size
from mlxr.fit.fit import MOST_SEQUENCES, Fit
from mlxr.fit.machine import Machine
from mlxr.fit.rows import FitRow, best_of
from mlxr.inspect.text_table import NARROWEST, Column, Heading, Ink, Row, render_table

_COLUMNS = (
    Column("", 9),
    Column("model", 10),
    Column("files", 3, right=True),
    Column("memory", 8, right=True),
    Column("longest", 7, right=True),
    Column("at once", 4, right=True),
    Column("tokens/s", 6, right=True),
    Column("prompt/s", 2, right=True),
)


def fit_text(rows: Sequence[FitRow], width: int, ink: Ink) -> str:
    """The text for people, at most `width` columns wide."""
    width = max(width, NARROWEST)
    lines: list[str] = []
    for machine, of_machine in _by_machine(rows):
        lines += [*([""] if lines else []), *_about(machine, of_machine, width, ink)]
        table: list[Row] = []
        for asked, group in groupby(of_machine, key=lambda row: row.asked):
            of_model = list(group)
            best = best_of(of_model)
            if len(of_model) > 1:
                table.append(Heading(asked))
            table += [_cells(row, best, of_model) for row in of_model]
        lines += render_table(_COLUMNS, table, width, ink)
        for note in _notes(of_machine):
            lines += textwrap.wrap(note, width, subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def _by_machine(rows: Sequence[FitRow]) -> Iterator[tuple[Machine, list[FitRow]]]:
    for title in dict.fromkeys(row.machine.title for row in rows):
        of_machine = [row for row in rows if row.machine.title == title]
        yield of_machine[0].machine, of_machine


def _about(machine: Machine, rows: Sequence[FitRow], width: int, ink: Ink) -> list[str]:
    memory = machine.memory
    free = "are free" if machine.is_here else "may be used, if nothing else runs"
    contexts = sorted({row.fit.context for row in rows if row.fit is not None})
    told = ", ".join(f"{tokens:,}" for tokens in contexts)
    about = (
        f"{size(memory.free_bytes)} of {memory.owner} {free}. Memory and sequences at once: with {told} tokens each"
        if contexts
        else f"{size(memory.free_bytes)} of {memory.owner} {free}"
    )
    return [ink.bold(machine.title), *textwrap.wrap(about, width)]


def _cells(row: FitRow, best: FitRow | None, of_model: Sequence[FitRow]) -> tuple[str, ...]:
    mark = "*" if row is best and len(of_model) > 1 else ""
    name = row.name.removeprefix(f"{row.asked}:").removeprefix(f"{row.asked}/") if len(of_model) > 1 else row.name
    files = "-" if row.size_bytes is None else size(row.size_bytes)
    told = row.fit
    if told is None:
        return (mark, name, files, "-", "-", "-", "-", "-")
    memory = size(told.memory_bytes)
    if told.refusal is not None:
        return (mark, name, files, memory, "none", "0", "-", "-")
    speed = told.speed
    rates = ("-", "-") if speed is None else (speed.decode_tokens_per_second, speed.prompt_tokens_per_second)
    many = f"{told.sequences}" if told.sequences < MOST_SEQUENCES else f"{MOST_SEQUENCES}+"
    return (mark, name, files, memory, f"{told.longest_context:,}", many, *(_rate(rate) for rate in rates))


def _rate(rate: float | str) -> str:
    return rate if isinstance(rate, str) else f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _notes(rows: Sequence[FitRow]) -> Iterator[str]:
    """What the table has no room for: which to take, why others cannot be, and where figures are from."""
    for asked, group in groupby(rows, key=lambda row: row.asked):
        of_model = list(group)
        if len(of_model) > 1:
            best = best_of(of_model)
            yield f"{asked}: none of them fits" if best is None else f"* take {best.name}: {_why(best, of_model)}"
    for row in rows:
        reason = row.error or (row.fit and (row.fit.refusal or row.fit.no_speed))
        if reason:
            yield f"{row.name}: {reason}"
    for row in rows:
        if row.fit is not None and row.fit.experts_on_cpu:
            what = f"the experts of {counted(row.fit.experts_on_cpu, 'layer')} are the CPU's"
            yield f"{row.name}: {what}, and take {size(row.fit.cpu_bytes)} of the machine's memory besides"
    fits = [row.fit for row in rows if row.fit is not None]
    speeds = [told.speed for told in fits if told.speed is not None]
    for source, tokens in dict.fromkeys((speed.source, speed.context) for speed in speeds):
        yield f"tokens/s: of one sequence after {tokens} tokens; {source}"
    programs = [speed.program_bytes for speed in speeds if speed.program_bytes is not None]
    if programs:
        least, most = size(min(programs)), size(max(programs))
        told = least if least == most else f"{least} to {most}"
        yield f"memory: what the plan counts, and {told} that the program itself takes (Python, the tokenizer)"
    elif fits:
        yield "memory: what the plan counts; the program itself (Python, the tokenizer) takes some 100 to 300 MiB more"


def _why(best: FitRow, rows: Sequence[FitRow]) -> str:
    better = [row for row in rows if row.place < best.place]
    context = best.fit.longest_context if best.fit is not None else 0
    if not better:
        return f"the first choice fits, with up to {context:,} tokens"
    names = ", ".join(row.name.rpartition(":")[2].rpartition("/")[2] for row in better[:3])
    return f"it has room for {context:,} tokens; before it would come {names}"


def fit_json(rows: Sequence[FitRow]) -> dict[str, Any]:
    """The same for programs: the machines, each with its models in the order in which they were named."""
    return {"machines": [_machine_json(machine, of_machine) for machine, of_machine in _by_machine(rows)]}


def _machine_json(machine: Machine, rows: Sequence[FitRow]) -> dict[str, Any]:
    best = [best_of(list(group)) for _, group in groupby(rows, key=lambda row: row.asked)]
    return {
        "machine": machine.title,
        "host": machine.host.name,
        "chip": None if machine.chip is None else machine.chip.name,
        "is_here": machine.is_here,
        "memory_bytes": machine.memory.free_bytes,
        "models": [_row_json(row, is_best=row in best) for row in rows],
    }


def _row_json(row: FitRow, *, is_best: bool) -> dict[str, Any]:
    told = None if row.fit is None else _fit_json(row.fit)
    return {
        "asked": row.asked,
        "model": row.name,
        "file_bytes": row.size_bytes,
        "take": is_best,
        "fits": row.fits,
        "error": row.error,
        "fit": told,
    }


def _fit_json(told: Fit) -> dict[str, Any]:
    return asdict(told) | {"planned_bytes": told.planned_bytes, "memory_bytes": told.memory_bytes}
