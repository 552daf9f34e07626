"""How well a model predicts a text, which shows what a weight format or a way to compute costs in quality."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlxr.bench.text_windows import Floats, Window, log_shares, text_windows
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.model import Model

Progress = Callable[[int, int, float], None]
"""Called with the windows done, all windows, and the figure so far."""


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of a text.

    Attributes:
        value: e to the mean negative log-likelihood of the predicted tokens.
        standard_error: its standard error, from the spread of the tokens' log-likelihoods.
        tokens: predicted tokens.
        windows: windows that were read.
    """

    value: float
    standard_error: float
    tokens: int
    windows: int


def perplexity(
    model: Model,
    ids: Sequence[int],
    window: int,
    stride: int | None = None,
    begin: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Measures the perplexity of a text, in windows as `text_windows` cuts them.

    Args:
        model: the model.
        ids: the text's tokens.
        window: tokens of a window, with `begin`; the last one may be shorter.
        stride: text tokens from the start of a window to the start of the next; None: windows do not overlap.
        begin: a token before every window: the model's BOS.
        progress: called after each window.

    Raises:
        RequestError: a window is longer than the model's context, a stride leaves tokens out, the text has too few
            tokens, or an id is outside the vocabulary.
    """
    check_window(model, window)
    windows = text_windows(ids, window, stride, begin)
    losses: list[Floats] = []
    for done, each in enumerate(windows, 1):
        losses.append(losses_of(model, each))
        if progress is not None:
            progress(done, len(windows), float(np.exp(np.concatenate(losses).mean())))
    return of_losses(np.concatenate(losses), len(windows))


def losses_of(model: Model, window: Window) -> Floats:
    """Negative log-likelihoods of a window's predicted tokens."""
    losses: list[Floats] = []
    left = window.predicted
    for rows in log_shares(model, window):
        losses.append(-rows[np.arange(len(rows)), left[: len(rows)]])
        left = left[len(rows) :]
    return np.concatenate(losses)


def check_window(model: Model, window: int) -> None:
    """Checks that a model can read a window.

    Raises:
        RequestError: it is longer than the model's context.
    """
    if window > model.limit.tokens:
        raise RequestError(f"a window of {window} tokens exceeds the model's context, {model.limit.tokens}")


def of_losses(losses: Floats, windows: int) -> Perplexity:
    """The perplexity of tokens by their negative log-likelihoods."""
    value = float(np.exp(losses.mean()))
    return Perplexity(value, value * float(losses.std()) / len(losses) ** 0.5, len(losses), windows)
