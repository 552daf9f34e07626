"""The bar chart of docs/speed.md."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers.report import Report

_INK = {"mlxr": "#2f6f4e", "llama.cpp": "#8f959e", "mlx-lm": "#d0a24c"}
_LIMIT = "#b03a2e"
_NAMES = {"mlxr": "MLXR", "llama.cpp": "llama.cpp", "mlx-lm": "mlx-lm"}
_PANELS = (
    ("user: decode after 512", "tokens per second after a prompt of 512"),
    ("user: decode, 16 prompts", "tokens per second of 16 prompts at once"),
    ("user: prompts of 300-700", "ms to the first token of 300 to 700 (less is better)"),
)


def draw_chart(report: "Report", model: str, path: Path) -> None:
    """Draws tokens per second of each engine by weight format, one panel for each kind of work."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    formats = list(report.figures[model])
    figure, axes = pyplot.subplots(1, len(_PANELS), figsize=(12, 3.6))
    for axis, (measure, title) in zip(axes, _PANELS, strict=True):
        unit = 1e3 if "prompts of" in measure else 1.0
        values = {e: [unit * (report.median(model, name, measure, e) or 0.0) for name in formats] for e in _INK}
        shown = [engine for engine in _INK if any(values[engine])]
        width = 0.8 / max(1, len(shown))
        for place, engine in enumerate(shown):
            lefts = [i + (place - (len(shown) - 1) / 2) * width for i in range(len(formats))]
            bars = axis.bar(lefts, values[engine], width * 0.92, color=_INK[engine], label=_NAMES[engine])
            axis.bar_label(bars, [_number(value) for value in values[engine]], fontsize=6.5, padding=1)
        for i, name in enumerate(formats):
            if limit := report.limit(model, name, measure):
                axis.plot([i - 0.45, i + 0.45], [limit, limit], color=_LIMIT, linewidth=1.2, label="memory bandwidth")
        axis.set_xticks(range(len(formats)), [name.upper() for name in formats], fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.margins(y=0.1)
        axis.set_ylim(bottom=0)
        axis.tick_params(axis="y", labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    labels = dict(reversed(pair) for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True))
    figure.legend(labels.values(), labels.keys(), ncols=len(labels), fontsize=8, frameon=False, loc="lower center")
    figure.suptitle(f"{model}, {report.threads} CPU threads", fontsize=10)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _number(value: float) -> str:
    return "" if not value else f"{value:.3g}" if value < 100 else f"{value:.0f}"
