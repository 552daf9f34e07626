"""The tokenizer of a model that is being loaded."""

import threading
import time
from contextlib import suppress
from pathlib import Path

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import NoTokenizerError, RequestError, TokenizerError
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.tokenizer.end_tokens import end_tokens
from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr.runtime.tokenizer.gguf_vocabulary import has_vocabulary
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.weight_file import WeightFile

_AT_ONCE = 4096
"""Tokens whose texts are found together; other threads may run in between."""
_MOST_SECONDS = 0.3
"""Of CPU time, for all: tokens of some kinds of vocabularies take ten times as long."""


class ModelTokenizer:
    """The tokenizer, or why there is none. Only text needs one, so its absence is no error until there is text.

    Attributes:
        tokenizer: None: there is none.
    """

    def __init__(self, file: WeightFile, weights: str | Path, tokenizer: str | Path | None, vocab_size: int) -> None:
        """Loads the tokenizer that belongs to a model.

        Args:
            file: the model's weights, opened.
            weights: where they are.
            tokenizer: the file or folder that the user names; None: the tokenizer in the weights, or beside them.
            vocab_size: ids of the model.

        Raises:
            TokenizerError: the one that the user names is missing or corrupt, or it has more tokens than the model.
        """
        self.tokenizer: Tokenizer | None = None
        self._error = ""
        try:
            if tokenizer is None and Path(weights).is_file() and has_vocabulary(file.metadata):
                loaded = tokenizer_from_gguf(file.metadata, str(file.path))  # its header has been read
            else:
                loaded = load_tokenizer(tokenizer or weights)
        except TokenizerError as error:
            if tokenizer is not None:
                raise
            self._error = str(error)  # the error itself would keep the frames that load the model, and its arena
            return
        _check_size(loaded, vocab_size)
        if tokenizer is not None and file.format == "gguf":
            loaded.add_ends(_ends(file, loaded))
        self.tokenizer = loaded

    def learn_all(self, host: type[Host]) -> None:
        """Has a thread find the texts of all tokens, for a host whose launches give many at once.

        That takes 0.1 s and 7 MB for 128,000 tokens, while a load waits for files.
        """
        if host.most_steps > 1 and (tokenizer := self.tokenizer) is not None:
            threading.Thread(target=_learn, args=(tokenizer,), name="mlxr-texts", daemon=True).start()

    def require(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            RequestError: there is none.
        """
        if self.tokenizer is None:
            raise RequestError(f"text needs a tokenizer: {self._error}")
        return self.tokenizer


def _learn(tokenizer: Tokenizer) -> None:
    with suppress(Exception):  # whoever needs the text of such a token is told
        for first in range(0, tokenizer.vocab_size, _AT_ONCE):
            if time.thread_time() > _MOST_SECONDS:
                break  # others are found when an answer has them
            tokenizer.learn(range(first, min(first + _AT_ONCE, tokenizer.vocab_size)))


def read_tokenizer(
    weights: str | Path, tokenizer: str | Path | None, vocab_size: int, *, required: bool
) -> ModelTokenizer:
    """The tokenizer that belongs to a model, before anything else of the model is loaded.

    Args:
        weights: where they are.
        tokenizer: the file or folder that the user names; None: the tokenizer in the weights, or beside them.
        vocab_size: ids of the model.
        required: whether there must be one.

    Raises:
        TokenizerError: see `ModelTokenizer`.
        RequestError: there must be one, and there is none that can be used.
        WeightsError: the weights cannot be read.
    """
    result = ModelTokenizer(open_weights(weights), weights, tokenizer, vocab_size)
    if required:
        result.require()
    return result


def _ends(file: WeightFile, tokenizer: Tokenizer) -> list[int]:
    """Ids that end answers of a GGUF model whose tokenizer is elsewhere: those that it has, and those known by name."""
    named = [file.metadata.get(f"{file_keys.TOKENIZER}{name}_token_id") for name in ("eos", "eot", "eom")]
    return [*(token_id for token_id in named if type(token_id) is int), *end_tokens(tokenizer.control_tokens)]


def check_tokenizer(weights: str | Path, tokenizer: str | Path | None, vocab_size: int | None = None) -> None:
    """Checks the tokenizer that belongs to a model, before anything else of the model is loaded.

    A model may come without one: then there is nothing to check.

    Args:
        weights: where they are.
        tokenizer: the file or folder that the user names; None: the tokenizer in the weights, or beside them.
        vocab_size: ids of the model, if they are known.

    Raises:
        TokenizerError: it is corrupt, not supported, or has more tokens than the model.
        WeightsError: the .gguf file that contains it is corrupt.
    """
    try:
        loaded = load_tokenizer(tokenizer or weights)
    except NoTokenizerError:
        return
    if vocab_size is not None:
        _check_size(loaded, vocab_size)


def _check_size(tokenizer: Tokenizer, vocab_size: int) -> None:
    if tokenizer.required_size > vocab_size:
        raise TokenizerError(
            f"the tokenizer has {tokenizer.required_size} tokens, the model {vocab_size}; it belongs to another model"
        )
