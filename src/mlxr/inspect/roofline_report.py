"""`mlxr inspect --chip`: the roofline of each launch as a table and as JSON, with measured times if there are some."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxr.compiler.artifact import Artifact, Chip
from mlxr.compiler.text import size
from mlxr.inspect.layers import ranges, without_layer
from mlxr.inspect.report import count
from mlxr.inspect.roofline import LaunchLimit, StepRoofline
from mlxr.inspect.text_table import NARROWEST, Column, Heading, Ink, Row, render_table

Measured = Mapping[tuple[str, str], float]
"""Microseconds by step and kernel: the planned kernel, whatever runs in its place."""


@dataclass(frozen=True)
class Roofline:
    """The contents of the report: limits on a chip, and the times that a host of this machine took."""

    artifact: Artifact
    chip: Chip
    steps: Sequence[StepRoofline]
    host: str | None = None
    device: str | None = None
    measured: Measured | None = None

    def time_us(self, step: StepRoofline, launch: LaunchLimit) -> float | None:
        """The measured time of a launch, if there is one."""
        return None if self.measured is None else self.measured[step.name, launch.row.launch.kernel]

    def total_us(self, step: StepRoofline) -> float | None:
        """The measured time of a step's launches together, if they were measured."""
        times = [self.time_us(step, launch) for launch in step.launches]
        return None if self.measured is None else sum(time for time in times if time is not None)


def roofline_text(roofline: Roofline, width: int, ink: Ink) -> str:
    """The text for people, at most `width` columns wide; layers that are alike are folded into one."""
    chip, name = roofline.chip, roofline.artifact.spec.name
    figures = chip.figures
    assert figures, "there are limits"
    about = (
        f"{name} on {chip.title}: {figures.bandwidth_gb_per_s.value:g} GB/s ({figures.bandwidth_gb_per_s.origin}), "
        f"{figures.f32_tflops.value:g} TFLOP/s f32 ({figures.f32_tflops.origin}), {figures.matmul_tflops.value:g} in "
        f"MLX's 16-bit matmul ({figures.matmul_tflops.origin}), {figures.launch_us.value:g} us for a launch "
        f"({figures.launch_us.origin})"
    )
    if roofline.host:
        about += f"; measured on host {roofline.host}, {roofline.device}"
    lines = textwrap.wrap(about, max(width, NARROWEST), subsequent_indent="  ")
    for step in roofline.steps:
        lines += ["", ink.bold(f"{step.name}: {step.about}"[: max(width, NARROWEST)])]
        for total in _totals(roofline, step):
            lines += textwrap.wrap(f"  {total}", max(width, NARROWEST), subsequent_indent="    ")
        columns = [
            Column("n", 9, right=True),
            Column("op", 2, named=False),
            Column("runs as", 5, named=False),
            Column("bytes", 3, right=True),
            Column("FLOPs", 3, right=True),
            Column("bound", 4),
            Column("limit us", 6, right=True),
            Column("predicted us", 8, right=True),
        ]
        if roofline.measured is not None:
            columns += [Column("measured us", 7, right=True), Column("of limit", 7, right=True)]
        lines += render_table(columns, list(_rows(roofline, step)), width, ink)
    return "\n".join(lines) + "\n"


def _totals(roofline: Roofline, step: StepRoofline) -> Iterator[str]:
    work, tokens = step.work, step.tokens
    each = (
        "" if tokens == 1 else f" ({size(work.size_bytes // tokens)} and {count(work.flops // tokens)} for each token)"
    )
    yield f"{len(step.launches)} launches, {size(work.size_bytes)}, {count(work.flops)} FLOPs{each}"
    yield (
        f"predicted {step.predicted_us:.1f} us, {_rate(tokens, step.predicted_us)}; "
        f"limit {step.limit_us:.1f} us, {_rate(tokens, step.limit_us)}"
    )
    if (total := roofline.total_us(step)) is not None:
        yield f"measured {total:.1f} us, {_rate(tokens, total)}: {100 * step.limit_us / total:.0f} % of the limit"


def _rate(tokens: int, time_us: float) -> str:
    return f"{1e6 * tokens / time_us:.4g} tokens/s"


def _rows(roofline: Roofline, step: StepRoofline) -> Iterator[Row]:
    limits = {launch.row.index: launch for launch in step.launches}
    blocks = step.rows.blocks
    for number, block in enumerate(blocks):
        if block.layers:
            many = f"each row is {block.times} launches" if block.times > 1 else "each row is 1 launch"
            yield Heading(f"layer{'s' if block.times > 1 else ''} {ranges(block.layers)}: {many}")
        elif number:
            yield Heading("after the layers: each row is 1 launch")
        for row in block.rows:
            if row.index in limits:
                yield _cells(roofline, step, limits[row.index], block.times)


def _cells(roofline: Roofline, step: StepRoofline, launch: LaunchLimit, times: int) -> tuple[str, ...]:
    cells = (
        str(times),
        without_layer(launch.row.launch.op, launch.row.layer),
        launch.runs_as,
        size(launch.work.size_bytes),
        count(launch.work.flops),
        launch.bound,
        f"{launch.limit_us:.2f}",
        f"{launch.predicted_us:.2f}",
    )
    time = roofline.time_us(step, launch)
    return cells if time is None else (*cells, f"{time:.2f}", f"{100 * launch.limit_us / time:.0f} %")


def roofline_json(roofline: Roofline) -> dict[str, Any]:
    """The same for programs; launches are not folded."""
    return {
        "chip": roofline.chip.model_dump(mode="json", exclude={"geometry"}),
        "host": roofline.host,
        "device": roofline.device,
        "steps": [_step_json(roofline, step) for step in roofline.steps],
    }


def _step_json(roofline: Roofline, step: StepRoofline) -> dict[str, Any]:
    work, measured = step.work, roofline.total_us(step)
    return {
        "step": step.name,
        "batch": dict(step.dims),
        "bytes": work.size_bytes,
        "flops": work.flops,
        "limit_us": step.limit_us,
        "predicted_us": step.predicted_us,
        "predicted_tokens_per_second": 1e6 * step.tokens / step.predicted_us,
        "measured_us": measured,
        "measured_tokens_per_second": measured and 1e6 * step.tokens / measured,
        "share_of_limit": measured and step.limit_us / measured,
        "launches": [_launch_json(roofline, step, launch) for launch in step.launches],
    }


def _launch_json(roofline: Roofline, step: StepRoofline, launch: LaunchLimit) -> dict[str, Any]:
    time = roofline.time_us(step, launch)
    return {
        "index": launch.row.index,
        "op": launch.row.launch.op,
        "runs_as": launch.runs_as,
        "bytes": launch.work.size_bytes,
        "flops": launch.work.flops,
        "bound": launch.bound,
        "memory_us": launch.memory_us,
        "compute_us": launch.compute_us,
        "launch_us": launch.launch_us,
        "predicted_us": launch.predicted_us,
        "measured_us": time,
        "share_of_limit": time and launch.limit_us / time,
    }
