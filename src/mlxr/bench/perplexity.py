"""How well a model predicts a text: what a weight format or a way to compute costs in quality."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mlxr.runtime.model import Model

Progress = Callable[[int, int], None]
"""Called with the windows done and the windows in all."""


def perplexity(model: Model, ids: Sequence[int], window: int, progress: Progress | None = None) -> float:
    """The perplexity of a text: e to the mean negative log-likelihood of its tokens.

    The text is cut into windows of `window` tokens, each read from an empty cache; the first token of a window is
    given, not predicted. Tokens that do not fill a window are left out.

    Raises:
        RequestError: a window is longer than the model's context, or an id is outside the vocabulary.
    """
    windows = [ids[start : start + window] for start in range(0, len(ids) - window + 1, window)]
    assert windows and window > 1, f"{len(ids)} tokens, windows of {window}"
    total = 0.0
    for done, tokens in enumerate(windows, 1):
        total += float(_losses(model.logits(tokens)[:-1], tokens[1:]).sum())
        if progress is not None:
            progress(done, len(windows))
    return float(np.exp(total / (len(windows) * (window - 1))))


def _losses(logits: npt.NDArray[np.float32], targets: Sequence[int]) -> npt.NDArray[np.float64]:
    """-log softmax at the targets: [rows]."""
    numbers = logits.astype(np.float64)
    numbers -= numbers.max(axis=1, keepdims=True)
    chosen: npt.NDArray[np.float64] = numbers[np.arange(len(targets)), targets]
    losses: npt.NDArray[np.float64] = np.log(np.exp(numbers).sum(axis=1)) - chosen
    return losses
