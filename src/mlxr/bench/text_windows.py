"""Cuts a text into windows, each of which a model reads from an empty cache, and predicts some of its tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import RequestError
from mlxr.compiler.text import counted
from mlxr.runtime.engine.model import Model

Floats = npt.NDArray[np.float64]

_ROWS = 32  # of logits at a time in f64


@dataclass(frozen=True)
class Window:
    """Tokens that a model reads from an empty cache; it predicts those from the index `first` on."""

    tokens: list[int]
    first: int

    @property
    def predicted(self) -> list[int]:
        """The tokens that it predicts."""
        return self.tokens[self.first :]


def read_text(path: Path) -> str:
    """The text of a file, which a user named with --text.

    Raises:
        RequestError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"--text {path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"--text {path}: is not UTF-8: {error.reason} at byte {error.start}") from error


def text_windows(ids: Sequence[int], window: int, stride: int | None = None, begin: int | None = None) -> list[Window]:
    """The windows of a text.

    A window predicts those of its tokens that no earlier window predicted: with a stride below its length, every token
    except those of the first window is predicted after at least `window - stride` others. The first token of the text
    is predicted only after `begin`.

    Args:
        ids: the text's tokens.
        window: tokens of a window, with `begin`; the last one may be shorter.
        stride: text tokens from the start of a window to the start of the next; None: windows do not overlap.
        begin: a token before every window: the model's BOS.

    Raises:
        RequestError: a stride leaves tokens out, or the text has too few tokens.
    """
    prefix = [] if begin is None else [begin]
    length = window - len(prefix)
    step = length if stride is None else stride
    if not 1 <= step <= length:
        raise RequestError(f"the stride is {step} tokens; expected 1 to {length}, so that windows leave no token out")
    if len(ids) + len(prefix) < 2:
        raise RequestError(
            f"the text has {counted(len(ids), 'token')}; expected at least {2 - len(prefix)}, to predict one"
        )
    return [
        Window([*prefix, *ids[start:end]], first - start + len(prefix))
        for start, end, first in _spans(len(ids), length, step, given=1 - len(prefix))
    ]


def _spans(count: int, length: int, step: int, given: int) -> Iterator[tuple[int, int, int]]:
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


def log_shares(model: Model, window: Window) -> Iterator[Floats]:
    """Log probabilities before each predicted token, in order: [some rows, vocab], the same number from every model."""
    row, skip, stop = 0, window.first - 1, len(window.tokens) - 1
    kept: list[npt.NDArray[np.float32]] = []
    held = 0
    for chunk in model.logit_chunks(window.tokens):
        rows = chunk[max(skip - row, 0) : max(stop - row, 0)]
        row += len(chunk)
        for start in range(0, len(rows), _ROWS):
            kept.append(rows[start : start + _ROWS])
            held += len(kept[-1])
            if held >= _ROWS:
                joined = np.concatenate(kept)
                yield _log_softmax(joined[:_ROWS])
                kept, held = [joined[_ROWS:]], held - _ROWS
    if held:
        yield _log_softmax(np.concatenate(kept))


def _log_softmax(logits: npt.NDArray[np.float32]) -> Floats:
    numbers: Floats = logits.astype(np.float64)
    numbers -= numbers.max(axis=1, keepdims=True)
    numbers -= np.log(np.exp(numbers).sum(axis=1, keepdims=True))
    return numbers
