"""Collects what was measured, and writes it as JSON, as a table, as RESULTS.md and as a bar chart.

Every figure is the median of its rounds. llama.cpp has two rows of figures, with and without flash attention; where
MLXR is compared with it, the better one counts.
"""

import datetime
import json
import os
import platform
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from peers.models import ROOT, Files
from peers.traffic import file_weight_bytes, key_value_bytes

LLAMA = ("llama.cpp", "llama.cpp-no-flash")
_UNITS = {"cold start": "s", "peak memory": "bytes"}
USER = "user: "
"""How the names of the user's path's measurements begin. For prompts they hold seconds to the first token, one each."""
_COLUMNS = ("", "path", "MLXR", "of limit", "llama.cpp", "ratio", "mlx-lm", "paged")


class Report:
    """Figures by model, format, measurement and engine."""

    def __init__(self, threads: int, rounds: int) -> None:
        self.threads, self.rounds = threads, rounds
        self.load_before = os.getloadavg()[0]
        """Processes that wanted a CPU before the run: they slow every figure down."""
        self.figures: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
        self.engines: dict[str, dict[str, Any]] = {}
        self.failures: list[str] = []
        self.bandwidth: list[float] = []
        self.bytes_read: dict[str, dict[str, int]] = {}
        self.planned: dict[str, dict[str, int]] = {}

    def add_model(self, files: Files) -> None:
        """Notes what a decode step of a model has to read."""
        self.bytes_read.setdefault(files.model, {})[files.format] = file_weight_bytes(files.source)

    def add_engine(self, engine: str, told: dict[str, Any]) -> None:
        """Notes what an engine says about itself."""
        self.engines[engine] = {key: value for key, value in told.items() if key in ("version", "built_for")}

    def add(self, files: Files, engine: str, measure: str, value: float) -> None:
        """Adds one round's figure: tokens per second, or in the unit of the measurement."""
        of_format = self.figures.setdefault(files.model, {}).setdefault(files.format, {})
        of_format.setdefault(measure, {}).setdefault(engine, []).append(value)

    def add_plan(self, files: Files, planned_bytes: int) -> None:
        """Notes the weights and the arena that MLXR planned."""
        self.planned.setdefault(files.model, {})[files.format] = planned_bytes

    def add_bandwidth(self, bytes_per_second: float) -> None:
        """Adds one measurement of the machine."""
        self.bandwidth.append(bytes_per_second)

    def add_failure(self, files: Files, engine: str, what: str, why: str) -> None:
        """Notes what an engine could not do."""
        plain = re.sub(r"(?:/[^\s/:]+)+/", "", why)  # folders mean nothing on another machine
        self.failures.append(f"{engine}, {files.model} {files.format}, {what}: {plain}")

    def median(self, model: str, format_name: str, measure: str, engine: str) -> float | None:
        """The median of an engine's rounds; for `llama.cpp` with the better of its settings."""
        return self._percentile(model, format_name, measure, engine, 50)

    def _percentile(self, model: str, format_name: str, measure: str, engine: str, percent: float) -> float | None:
        rounds = self.figures.get(model, {}).get(format_name, {}).get(measure, {})
        engines = {"llama.cpp": LLAMA, "mlxr": ("mlxr", "mlxr-batch", "mlxr-user", "mlxr-user-batch")}.get(
            engine, (engine,)
        )
        values = [float(np.percentile(rounds[name], percent)) for name in engines if rounds.get(name)]
        if not values:
            return None
        return min(values) if _is_time(measure) or measure in _UNITS else max(values)

    def limit(self, model: str, format_name: str, measure: str) -> float | None:
        """Tokens per second of one sequence if reading memory took all the time."""
        words = measure.removeprefix(USER).split()
        if not self.bandwidth or words[:2] != ["decode", "after"]:
            return None
        read = self.bytes_read[model][format_name] + key_value_bytes(model, int(words[2]))
        return float(statistics.median(self.bandwidth) / read)

    def rows(self, model: str, format_name: str) -> list[tuple[str, ...]]:
        """One row for each measurement: its name, then what `_COLUMNS` says.

        Prompts of the user's path have two rows: their median and their 95th percentile. Their ratio is llama.cpp's
        time over MLXR's, so that more is better there too.
        """
        rows: list[tuple[str, ...]] = []
        for measure in self.figures.get(model, {}).get(format_name, {}):
            if _is_time(measure):
                rows += [self._user_row(model, format_name, measure, percent) for percent in (50, 95)]
                continue
            ours, theirs, mlx, paged = (
                self.median(model, format_name, measure, engine)
                for engine in ("mlxr", "llama.cpp", "mlx-lm", "mlxr-paged")
            )
            limit = self.limit(model, format_name, measure)
            share = f"{100 * ours / limit:.0f} %" if ours and limit else ""
            ratio = f"{ours / theirs:.2f} x" if ours and theirs else ""
            if measure == "peak memory" and ours and (planned := self.planned.get(model, {}).get(format_name)):
                share = f"{ours / planned:.2f} x plan"
            against = f" ({ours / mlx:.0f} x)" if ours and mlx else ""
            contiguous = f"{ours / paged:.3f}" if ours and paged else ""
            shown = [_show(measure, value) for value in (ours, theirs, mlx)]
            path = "user" if measure.startswith(USER) else "engine"
            rows.append(
                (measure.removeprefix(USER), path, shown[0], share, shown[1], ratio, shown[2] + against, contiguous)
            )
        return rows

    def _user_row(self, model: str, format_name: str, measure: str, percent: int) -> tuple[str, ...]:
        engines = ("mlxr", "llama.cpp", "mlx-lm")
        ours, theirs, mlx = (self._percentile(model, format_name, measure, name, percent) for name in engines)
        ratio = f"{theirs / ours:.2f} x" if ours and theirs else ""
        against = f" ({mlx / ours:.0f} x)" if ours and mlx else ""
        shown = [_show(measure, value) for value in (ours, theirs, mlx)]
        return (
            f"{measure.removeprefix(USER)}, p{percent}",
            "user",
            shown[0],
            "",
            shown[1],
            ratio,
            shown[2] + against,
            "",
        )

    def table(self, model: str, format_name: str) -> str:
        """One configuration's rows as text."""
        rows = [_COLUMNS, *self.rows(model, format_name)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        speed = f", read bandwidth {statistics.median(self.bandwidth) / 1e9:.1f} GB/s" if self.bandwidth else ""
        return "\n".join([f"{model} {format_name}, {self.threads} threads{speed}", *lines, ""])

    def write(self, folder: Path) -> None:
        """Writes benchmarks/peers.json and benchmarks/RESULTS.md under a folder."""
        target = folder / "benchmarks"
        target.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"machine": machine(), **vars(self)}, indent=1)
        (target / "peers.json").write_text(text + "\n", encoding="utf-8")
        (target / "RESULTS.md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """All tables, with what is needed to repeat them."""
        told = [
            f"{name}: {engine['version']}"
            for name, engine in self.engines.items()
            if name in ("mlxr", "llama.cpp", "mlx-lm")
        ]
        built = self.engines.get("llama.cpp", {}).get("built_for", "")
        lines = [
            "# Measurements",
            "",
            f"{datetime.date.today().isoformat()}, {machine()}, {self.threads} threads, read bandwidth "
            f"{statistics.median(self.bandwidth or [0]) / 1e9:.1f} GB/s (median). Medians of {self.rounds} interleaved "
            "rounds, by",
            "",
            f"    {_command()}",
            "",
            f"{'; '.join(told)}. Load average before the run: {self.load_before:.1f}.",
            *([f"llama.cpp was built with: {built.strip()}"] if built else []),
            "",
            "Figures are tokens per second of all sequences together. Of limit: share of the speed at which reading",
            "the weights and the cache would take all the time; what stays in the CPU's own caches can exceed it.",
            "llama.cpp: with or without flash attention, whichever is faster in that row. Ratio: MLXR over llama.cpp;",
            "below 1 is better for time and memory. mlx-lm: with bf16 weights, or with MLX's own format of as many",
            "bits. Paged: the speed over that with a block table. Path: engine, each engine driven step by step; user,",
            "MLXR loaded by `mlxr.load` with default options: time to the first token of prompts whose lengths the",
            "process has not seen (ratio: llama.cpp's time over MLXR's), and tokens as they come (llama.cpp, mlx-lm:",
            "only their steps).",
        ]
        for model, formats in self.figures.items():
            for format_name in formats:
                lines += ["", f"## {model}, {format_name}", ""]
                lines += ["| " + " | ".join(_COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
                lines += ["| " + " | ".join(row) + " |" for row in self.rows(model, format_name)]
        if self.failures:
            lines += ["", "## What failed", "", *(f"* {failure}" for failure in self.failures)]
        return "\n".join(lines) + "\n"

    def draw(self, folder: Path) -> None:
        """Draws docs/cpu-peers.png under a folder: the largest model that was measured."""
        from peers.chart import draw_chart

        models = [model for model in ("tinyllama", "100m", "storyteller") if model in self.figures]
        if models:
            draw_chart(self, models[0], folder / "docs/cpu-peers.png")


def machine() -> str:
    """The CPU's name and its number of CPUs."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {os.cpu_count()} CPUs, {platform.system()}"


def _is_time(measure: str) -> bool:
    """Whether figures are seconds, of prompts as users give them."""
    return measure.startswith(f"{USER}prompts")


def _show(measure: str, value: float | None) -> str:
    if value is None:
        return ""
    if _is_time(measure):
        return f"{1e3 * value:.0f} ms"
    if measure == "peak memory":
        return f"{value / 2**20:.0f} MiB"
    if measure == "cold start":
        return f"{value:.2f} s"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _command() -> str:
    """The command line; folders without their paths, which mean nothing on other machines."""
    script = Path(sys.argv[0]).resolve()
    words = [str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name, *sys.argv[1:]]
    return " ".join(["python", *(Path(word).name if Path(word).is_absolute() else word for word in words)])
