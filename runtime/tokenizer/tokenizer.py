"""The tokenizer: text to token ids and back, whatever library does the work.

Invariant: a library sees only ids that are in its vocabulary and text that is Unicode, so nothing but a
TokenizerError comes out of it.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.stream_decoder import StreamDecoder
from mlxr.runtime.tokenizer.token_span import TokenSpan


@dataclass(frozen=True)
class SpecialTokens:
    """What a model's files say of its special tokens; None where they leave it to the tokenizer itself.

    Attributes:
        bos_id: begins a text.
        eos_id: ends a text.
        end_ids: further ids that end an answer.
        add_bos: whether a text is given the BOS.
        add_eos: whether a text is given the EOS.
    """

    bos_id: int | None = None
    eos_id: int | None = None
    end_ids: tuple[int, ...] = ()
    add_bos: bool | None = None
    add_eos: bool | None = None


class Tokenizer(ABC):
    """Text to token ids and back. Immutable, and safe to share between threads.

    Attributes:
        source: where it comes from.
        vocab_size: number of ids.
        required_size: ids that a model of this tokenizer must have; those beyond were added to the vocabulary, and a
            model may lack them.
        bos_id: begins a text; None where the model has no such token.
        eos_id: ends a text; None where the model has no such token.
        eos_ids: every id that ends an answer.
    """

    def __init__(self, source: str, vocab_size: int, required_size: int | None = None) -> None:
        """To be followed by `_set_special`."""
        self.source = source
        self.vocab_size = vocab_size
        self.required_size = vocab_size if required_size is None else required_size
        self.bos_id: int | None = None
        self.eos_id: int | None = None
        self.eos_ids: frozenset[int] = frozenset()
        self._before: list[int] = []
        self._after: list[int] = []

    def _set_special(self, bos_id: int | None, eos_id: int | None, end_ids: Iterable[int]) -> None:
        """Sets the special tokens.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        self.bos_id = None if bos_id is None else self.check_id(bos_id)
        self.eos_id = None if eos_id is None else self.check_id(eos_id)
        ends = [self.check_id(token_id) for token_id in end_ids]
        self.eos_ids = frozenset(ends if self.eos_id is None else [self.eos_id, *ends])

    def _set_added(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Sets what `encode` puts before and after a text."""
        self._before, self._after = list(before), list(after)

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` begins a text with the BOS."""
        return self.bos_id is not None and self.bos_id in self._before

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        Args:
            text: the text.
            add_special: whether it is given what the model wants around a text: mostly a BOS before it, or nothing.
            parse_special: whether control tokens spelled out in `text` become those tokens, as in a rendered chat
                template; else they are text like any other.

        Raises:
            TokenizerError: `text` holds half a surrogate pair, which is no Unicode text.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"character {error.start} of the text is the lone surrogate {text[error.start]!a}, "
                "which no token stands for; decode the input as UTF-8 first"
            ) from error
        ids = self._encode(text, parse_special)
        return [*self._before, *ids, *self._after] if add_special else ids

    def least_tokens(self, text: str) -> int:
        """A number of tokens than which `text` has no fewer, found without encoding it; 0 where nothing is known."""
        return self._span.least_tokens(text) if self._span else 0

    @property
    @abstractmethod
    def _span(self) -> TokenSpan | None:
        """How much text a token can stand for; None where that is not known."""

    @abstractmethod
    def _encode(self, text: str, parse_special: bool) -> list[int]:
        """Token ids of a text that is known to be Unicode, with nothing around them."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`. Control tokens have none; bytes that are no UTF-8 become U+FFFD.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        decoder = self.stream_decoder()
        return "".join([*(decoder.push(token_id) for token_id in ids), decoder.flush()])

    @abstractmethod
    def stream_decoder(self) -> StreamDecoder:
        """A decoder of one sequence, id by id."""

    @abstractmethod
    def is_control(self, token_id: int) -> bool:
        """Whether a token in the vocabulary stands for no text."""

    @abstractmethod
    def token_text(self, token_id: int) -> str:
        """How the vocabulary spells a token: `<s>`, `<|im_end|>`, or a piece of text in its own alphabet.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """

    def check_id(self, token_id: int) -> int:
        """`token_id` as a Python integer.

        Raises:
            TokenizerError: it is no integer, or outside the vocabulary.
        """
        try:
            value = operator.index(token_id)
        except TypeError as error:
            raise TokenizerError(f"{self.source}: expected a token id, got {token_id!r}") from error
        if not 0 <= value < self.vocab_size:
            raise TokenizerError(f"{self.source}: token id {value} is outside the vocabulary of {self.vocab_size}")
        return value
