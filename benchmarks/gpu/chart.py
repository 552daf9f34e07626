"""The picture: MLXR's speed over mlx-lm's in every row, and the share of the limit that each reaches."""

from pathlib import Path

from gpu.results import Results
from gpu.work import Row

_INK = {"mlxr": "#2f6f4e", "mlx-lm": "#d0a24c", "torch": "#8f959e"}
_NAMES = {"mlxr": "MLXR", "mlx-lm": "mlx-lm", "torch": "PyTorch, compiled"}


def draw(results: Results, path: Path) -> None:
    """Draws one panel for each model: bars of the share of the limit, with the ratio to mlx-lm beside them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in results.rows() if results.limit(row)]
    models = list(dict.fromkeys(row.model for row in rows))
    if not models:
        return
    most = max(sum(row.model == model for row in rows) for model in models)
    size = (6.5 * len(models), 1.4 + 0.5 * most)
    figure, axes = pyplot.subplots(1, len(models), figsize=size, squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        mine = [row for row in rows if row.model == model]
        for place, (engine, ink) in enumerate(_INK.items()):
            heights = [_share(results, row, engine) for row in mine]
            if any(heights):
                places = [i + (place - 1) * 0.27 for i in range(len(mine))]
                axis.barh(places, heights, 0.25, color=ink, label=_NAMES[engine])
        for i, row in enumerate(mine):
            ours, theirs = results.seconds(row, "mlxr"), results.seconds(row, "mlx-lm")
            if ours and theirs:
                axis.text(_share(results, row, "mlxr") + 1, i - 0.27, f"{theirs / ours:.2f} x", va="center", fontsize=7)
        axis.set_yticks(range(len(mine)), [f"{row.title}, {row.format}" for row in mine], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlim(0, 112)
        axis.set_xlabel("% of the limit by memory or arithmetic", fontsize=8)
        axis.tick_params(axis="x", labelsize=7)
        axis.set_title(model, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    labels = {label: bar for axis in axes[0] for bar, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels.keys(), ncols=len(labels), fontsize=8, frameon=False, loc="lower center")
    figure.suptitle(results.heading(), fontsize=7)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _share(results: Results, row: Row, engine: str) -> float:
    seconds, limit = results.seconds(row, engine), results.limit(row)
    return 100 * limit / seconds if seconds and limit else 0.0
