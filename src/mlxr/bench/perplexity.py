"""How well a model predicts a text, which shows what a weight format or a way to compute costs in quality."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import RequestError
from mlxr.compiler.text import counted
from mlxr.runtime.engine.model import Model

Progress = Callable[[int, int, float], None]
"""Called with the windows done, all windows, and the perplexity so far."""

_ROWS = 32  # of logits at a time in f64


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
    """Measures the perplexity of a text.

    The text is cut into windows, each read from an empty cache. A window predicts those of its tokens that no earlier
    window predicted: with a stride below its length, every token except those of the first window is predicted after at
    least `window - stride` others. The first token of the text is predicted only after `begin`.

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
    prefix = [] if begin is None else [begin]
    length = window - len(prefix)
    step = length if stride is None else stride
    if window > model.limit.tokens:
        raise RequestError(f"a window of {window} tokens exceeds the model's context, {model.limit.tokens}")
    if not 1 <= step <= length:
        raise RequestError(f"the stride is {step} tokens; expected 1 to {length}, so that windows leave no token out")
    if len(ids) + len(prefix) < 2:
        raise RequestError(
            f"the text has {counted(len(ids), 'token')}; expected at least {2 - len(prefix)}, to predict one"
        )
    windows = list(_windows(len(ids), length, step, given=1 - len(prefix)))
    losses: list[npt.NDArray[np.float64]] = []
    for done, (start, end, first) in enumerate(windows, 1):
        tokens = [*prefix, *ids[start:end]]
        skip = first - start + len(prefix) - 1  # the row before the first token to be predicted
        losses.append(_losses(model.logit_chunks(tokens), tokens, skip))
        if progress is not None:
            progress(done, len(windows), float(np.exp(np.concatenate(losses).mean())))
    every = np.concatenate(losses)
    value = float(np.exp(every.mean()))
    return Perplexity(value, value * float(every.std()) / len(every) ** 0.5, len(every), len(windows))


def _windows(count: int, length: int, step: int, given: int) -> Iterator[tuple[int, int, int]]:
    """Start, end, and the first token to be predicted, of each window over `count` tokens."""
    predicted = 0
    for start in range(0, count, step):
        end = min(start + length, count)
        first = max(predicted, start + given)
        if first < end:
            yield start, end, first
        predicted = end
        if end == count:
            return


def _losses(chunks: Iterator[npt.NDArray[np.float32]], tokens: Sequence[int], skip: int) -> npt.NDArray[np.float64]:
    """-log softmax of the rows from `skip` on, each at the token that follows: [tokens - 1 - skip]."""
    losses, row = [], 0
    for chunk in chunks:
        for start in range(0, len(chunk), _ROWS):
            logits = chunk[start : start + _ROWS]
            first, last = max(skip - row, 0), min(len(logits), len(tokens) - 1 - row)
            if first < last:
                numbers = logits[first:last].astype(np.float64)
                numbers -= numbers.max(axis=1, keepdims=True)
                chosen = numbers[np.arange(last - first), tokens[row + first + 1 : row + last + 1]]
                losses.append(np.log(np.exp(numbers).sum(axis=1)) - chosen)
            row += len(logits)
    return np.concatenate(losses)
