"""`mlxr inspect --predict --link`: times of the ranks and of other splits, as tables and as JSON."""

import textwrap
from typing import Any

from mlxr.compiler.artifact.chip import Figure
from mlxr.compiler.text import counted, size
from mlxr.inspect.split.compare_splits import SplitComparison
from mlxr.inspect.split.predict_split import RankTime, SplitTimes, rate_text
from mlxr.inspect.text_table import NARROWEST, Column, Ink, Row, render_table


def prediction_report(comparison: SplitComparison, width: int, ink: Ink) -> str:
    """The text for people, at most `width` columns wide."""
    own, link, width = comparison.own, comparison.link, max(width, NARROWEST)
    name = comparison.artifact.spec.name
    handover = f", {_figure(link.handover_us, 'us from GPU to CPU and back')}" if link.handover_us else ""
    own_sum = f", {_figure(link.own_sum_us, 'us a sum by our own kernel')}" if link.own_sum_us else ""
    about = (
        f"{name} by {own.name} on {len(own.memory_bytes)} x {comparison.chip.title}, {link.title} ({link.backend}): "
        f"{_figure(link.latency_us, 'us a message')}, {_figure(link.bandwidth_gb_per_s, 'GB/s')}{own_sum}{handover}"
    )
    lines = textwrap.wrap(about, width, subsequent_indent="  ")
    lines[0] = lines[0].replace(name, ink.bold(name), 1)
    lines += ["", ink.bold(f"ranks: {_what(own)}"[:width])]
    columns = [
        Column("rank", 9, right=True),
        Column("memory", 5, right=True),
        Column("decode compute us", 8, right=True),
        Column("messages us", 7, right=True),
        Column("prefill compute ms", 6, right=True),
        Column("messages ms", 5, right=True),
    ]
    rows: list[Row] = [
        (
            str(rank),
            size(own.memory_bytes[rank]),
            f"{step.compute_us:.0f}",
            f"{step.messages_us:.0f}",
            f"{own.of_prompt(rank).compute_us / 1e3:.0f}",
            f"{own.of_prompt(rank).messages_us / 1e3:.0f}",
        )
        for rank, step in enumerate(own.decode)
    ]
    lines += render_table(columns, rows, width, ink)
    lines += ["", ink.bold("splits")]
    columns = [
        Column("split", 9),
        Column("most memory", 5, right=True),
        Column("decode ms", 7, right=True),
        Column("tokens/s", 8, right=True),
        Column("all stages busy", 4, right=True),
        Column("prefill s", 6, right=True),
        Column("tokens/s", 7, right=True),
    ]
    rows = [
        (
            f"{times.name}{' (this one)' if times is own else ''}",
            size(max(times.memory_bytes)),
            f"{times.decode_us / 1e3:.2f}",
            rate_text(times.decode_rate),
            rate_text(times.busy_rate) if times.pipeline > 1 else "-",
            f"{times.prefill_us / 1e6:.3g}",
            rate_text(times.prefill_rate),
        )
        for times in comparison.all
    ]
    lines += render_table(columns, rows, width, ink)
    for verdict in comparison.verdicts:
        lines += textwrap.wrap(verdict, width, subsequent_indent="  ")
    for split, reason in comparison.impossible.items():
        lines += textwrap.wrap(f"{split}: {reason}", width, subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def prediction_json(comparison: SplitComparison) -> dict[str, Any]:
    """The same for programs."""
    return {
        "name": comparison.artifact.spec.name,
        "chip": comparison.chip.model_dump(mode="json", exclude={"geometry"}),
        "link": comparison.link.model_dump(mode="json"),
        "own": comparison.own.name,
        "splits": [_times_json(times) for times in comparison.all],
        "impossible": dict(comparison.impossible),
        "one_machine_budget_bytes": comparison.single_budget_bytes,
        "fits_one_machine": comparison.fits_one,
        "verdicts": list(comparison.verdicts),
    }


def _what(times: SplitTimes) -> str:
    return (
        f"a decode step of {counted(times.batch, 'sequence')}, and a prompt of {counted(times.prompt, 'token')} in "
        f"{counted(len(times.chunks), 'chunk')}"
    )


def _figure(figure: Figure, unit: str) -> str:
    return f"{figure.value:g} {unit} ({figure.origin})"


def _times_json(times: SplitTimes) -> dict[str, Any]:
    return {
        "split": times.name,
        "tensor": times.tensor,
        "pipeline": times.pipeline,
        "batch": times.batch,
        "prompt": times.prompt,
        "decode_us": times.decode_us,
        "decode_tokens_per_second": times.decode_rate,
        "slowest_stage_us": times.slowest_stage_us,
        "busy_tokens_per_second": times.busy_rate,
        "prefill_us": times.prefill_us,
        "prefill_tokens_per_second": times.prefill_rate,
        "ranks": [
            {
                "rank": rank,
                "memory_bytes": memory,
                "decode": _rank_json(times.decode[rank]),
                "prefill": _rank_json(times.of_prompt(rank)),
            }
            for rank, memory in enumerate(times.memory_bytes)
        ],
    }


def _rank_json(time: RankTime) -> dict[str, float]:
    return {"compute_us": time.compute_us, "messages_us": time.messages_us, "total_us": time.total_us}
