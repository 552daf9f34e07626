"""How far a model is from another one that it should agree with: a quantised one from its original.

Definitions are those of llama-perplexity --kl-divergence, so that figures can be compared; it reads the original's
probabilities from a file in which they have 16 bits, and predicts the second half of each window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlxr.bench.perplexity import Perplexity, Progress, check_window, of_losses
from mlxr.bench.text_windows import Floats, Window, log_shares, text_windows
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.model import Model

QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}
"""Parts of the tokens whose divergence is no more than the figure of that name."""


@dataclass(frozen=True)
class Divergence:
    """How far a model's probabilities are from those of its original, before each token of a text.

    Attributes:
        mean: mean Kullback-Leibler divergence in nats: what the model's probabilities lose of the original's.
        mean_error: its standard error, from the spread over tokens.
        quantiles: by the names of `QUANTILES`.
        same_first: the part of the tokens for which both have the same most probable token.
        same_first_error: its standard error.
        ratio: the model's perplexity by the original's.
        ratio_error: its standard error, from the spread of the differences between both.
        perplexity: the model's.
        original: the original's.
    """

    mean: float
    mean_error: float
    quantiles: dict[str, float]
    same_first: float
    same_first_error: float
    ratio: float
    ratio_error: float
    perplexity: Perplexity
    original: Perplexity


def divergence(
    model: Model,
    original: Model,
    ids: Sequence[int],
    window: int,
    stride: int | None = None,
    begin: int | None = None,
    progress: Progress | None = None,
) -> Divergence:
    """Measures how far a model is from its original on a text; arguments are those of `perplexity`.

    Raises:
        RequestError: as `perplexity`, or the models do not have as many tokens.
    """
    for each in (model, original):
        check_window(each, window)
    check_vocabularies(model, original)
    return divergence_on(model, original, text_windows(ids, window, stride, begin), progress)


def check_vocabularies(model: Model, original: Model) -> None:
    """Checks that two models have as many tokens.

    Raises:
        RequestError: they have not.
    """
    sizes = [each.artifact.spec.model.vocab_size for each in (model, original)]
    if sizes[0] != sizes[1]:
        raise RequestError(
            f"{model.artifact.spec.name} has {sizes[0]} tokens and {original.artifact.spec.name} {sizes[1]}: "
            "only models with the same vocabulary can be compared"
        )


def divergence_on(
    model: Model, original: Model, windows: Sequence[Window], progress: Progress | None = None
) -> Divergence:
    """Measures it over windows."""
    lost: list[Floats] = []
    for done, each in enumerate(windows, 1):
        left = np.array(each.predicted)
        for ours, theirs in zip(log_shares(model, each), log_shares(original, each), strict=True):
            chosen = np.arange(len(ours)), left[: len(ours)]
            divergences = (np.exp(theirs) * (theirs - ours)).sum(axis=1)
            same = ours.argmax(axis=1) == theirs.argmax(axis=1)
            lost.append(np.stack([divergences, same, -ours[chosen], -theirs[chosen]]))
            left = left[len(ours) :]
        if progress is not None:
            progress(done, len(windows), float(np.concatenate(lost, axis=1)[0].mean()))
    return _summary(np.concatenate(lost, axis=1), len(windows))


def _summary(rows: Floats, windows: int) -> Divergence:
    """Args: rows: divergence, whether the first choice is the same, and both losses, of each token: [4, tokens]."""
    divergences, same, ours, theirs = rows
    count = len(divergences)
    ratio = float(np.exp((ours - theirs).mean()))
    part = float(same.mean())
    return Divergence(
        mean=float(divergences.mean()),
        mean_error=float(divergences.std()) / count**0.5,
        quantiles={name: float(np.quantile(divergences, part)) for name, part in QUANTILES.items()},
        same_first=part,
        same_first_error=(part * (1 - part) / count) ** 0.5,
        ratio=ratio,
        ratio_error=ratio * float((ours - theirs).std()) / count**0.5,
        perplexity=of_losses(ours, windows),
        original=of_losses(theirs, windows),
    )
