"""The interface of tokenizers, which convert text to token ids and back with one library or another.

Invariant: a library only gets ids that are in its vocabulary, and text that is valid Unicode. So nothing but
TokenizerErrors is raised.
"""

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.stream_decoder import StreamDecoder
from mlxr.runtime.tokenizer.text_growth import check_growth
from mlxr.runtime.tokenizer.token_span import TokenSpan

_BEFORE = ("\n", "a", ".", "0", " ")
"""Texts to encode another text after, where the tokenizer treats the start of a text in its own way."""


@dataclass(frozen=True)
class SpecialTokens:
    """What a model's files say about its special tokens; None for what the tokenizer itself decides.

    Attributes:
        bos_id: the id that begins a text.
        eos_id: the id that ends a text.
        end_ids: other ids that end an answer, each with the file that names it.
        add_bos: whether the BOS is added to a text.
        add_eos: whether the EOS is added to a text.
    """

    bos_id: int | None = None
    eos_id: int | None = None
    end_ids: Mapping[int, str] = field(default_factory=dict)
    add_bos: bool | None = None
    add_eos: bool | None = None


@dataclass(frozen=True)
class PairForm:
    """What a model expects around two texts that it reads together.

    Attributes:
        before, between, after: token ids.
        has_types: whether the second text and what follows it have a type of their own.
    """

    before: list[int]
    between: list[int]
    after: list[int]
    has_types: bool


class Tokenizer(ABC):
    """Converts text to token ids and back. It is immutable, so threads may share it.

    Attributes:
        source: the file that it comes from.
        vocab_size: number of ids.
        required_size: how many ids a model with this tokenizer must have. Ids beyond were added to the vocabulary, and
            a model may lack them.
        bos_id: the id that begins a text; None if the model has none.
        eos_id: the id that ends a text; None if the model has none.
        eos_ids: every id that ends an answer.
    """

    def __init__(self, source: str, vocab_size: int, required_size: int | None = None) -> None:
        """Sets everything but the special tokens: the subclass then calls `_set_special`."""
        self.source = source
        self.vocab_size = vocab_size
        self.required_size = vocab_size if required_size is None else required_size
        self.bos_id: int | None = None
        self.eos_id: int | None = None
        self.eos_ids: frozenset[int] = frozenset()
        self._before: list[int] = []
        self._after: list[int] = []

    def _set_special(self, bos_id: int | None, eos_id: int | None, end_ids: Mapping[int, str]) -> None:
        """Sets the special tokens. Of `end_ids`, those outside the vocabulary are left out: no answer has them.

        Raises:
            TokenizerError: the BOS or EOS is outside the vocabulary.
        """
        self.bos_id = None if bos_id is None else self.check_id(bos_id)
        self.eos_id = None if eos_id is None else self.check_id(eos_id)
        ends = [token_id for token_id in end_ids if 0 <= token_id < self.vocab_size]
        self.eos_ids = frozenset(ends if self.eos_id is None else [self.eos_id, *ends])

    def add_ends(self, ids: Iterable[int]) -> None:
        """Has further ids end answers, before anything uses it; those outside the vocabulary are left out."""
        self.eos_ids |= {token_id for token_id in ids if 0 <= token_id < self.vocab_size}

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
            add_special: whether to add the tokens that the model expects around a text: usually a BOS, or nothing.
            parse_special: whether the names of control tokens in `text` become these tokens, as in a rendered chat
                template; else they are ordinary text.

        Raises:
            TokenizerError: `text` has half of a surrogate pair, which is not valid Unicode; or it is so long that the
                tokenizer's own steps could ask for all memory.
        """
        self._check(text)
        ids = self._encode(text, parse_special)
        return [*self._before, *ids, *self._after] if add_special else ids

    def encode_start(self, text: str, most: int) -> tuple[list[int], bool]:
        """At most `most` ids of a text with the special tokens around it, and whether its end was cut off for that.

        What `encode` puts after a text is still there.

        Raises:
            TokenizerError: as `encode`.
        """
        if self._span and self.least_tokens(start := text[: 2 * most * self._span.characters]) > most:
            text = start  # what is beyond is not worth the time
        ids = self.encode(text)
        if len(ids) <= most:
            return ids, False
        return [*ids[: max(0, most - len(self._after))], *self._after][:most], True

    def pair_form(self) -> PairForm:
        """What the model expects around two texts that it reads together.

        Raises:
            TokenizerError: the tokenizer does not say it.
        """
        raise TokenizerError(f"{self.source}: does not say what stands between two texts")

    def encode_parts(self, parts: Sequence[str]) -> list[int]:
        """Token ids of a text whose control tokens are known: other names of control tokens in it are ordinary text.

        If the text has no other names, these are the ids of `encode` with `parse_special`, without `add_special`.

        Args:
            parts: of the text; those at odd places are names of control tokens.

        Raises:
            TokenizerError: as `encode`.
        """
        self._check("".join(parts))
        return self._encode_parts(parts)

    def least_tokens(self, text: str) -> int:
        """The least number of tokens that `text` can have, without encoding it; 0 if that is not known."""
        return self._span.least_tokens(text) if self._span else 0

    def _check(self, text: str) -> None:
        check_growth(_utf8_bytes(text), self._growth)

    @functools.cached_property
    def _growth(self) -> float:
        """Most bytes that encoding makes of a byte of text before it looks for tokens."""
        return 1.0

    @property
    @abstractmethod
    def _span(self) -> TokenSpan | None:
        """How much text a token can stand for; None if that is not known."""

    @abstractmethod
    def _encode(self, text: str, parse_special: bool) -> list[int]:
        """Token ids of a text that is valid Unicode, without special tokens around them."""

    @abstractmethod
    def _encode_parts(self, parts: Sequence[str]) -> list[int]:
        """See `encode_parts`; the text is valid Unicode."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`. Control tokens have no text; bytes that are not UTF-8 become U+FFFD.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        decoder = self.stream_decoder()
        return "".join([*(decoder.push(token_id) for token_id in ids), decoder.flush()])

    @abstractmethod
    def stream_decoder(self) -> StreamDecoder:
        """A decoder of one sequence, id by id."""

    def learn(self, token_ids: Sequence[int]) -> None:
        """Finds texts of tokens in the vocabulary, as far as they are whole characters, before a decoder needs them."""
        return None

    @abstractmethod
    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of text that a token stands for, anywhere but at the start of a text.

        Control tokens and the unknown token of sentencepiece models have none.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """

    @abstractmethod
    def is_control(self, token_id: int) -> bool:
        """Whether a token in the vocabulary stands for no text."""

    @abstractmethod
    def token_text(self, token_id: int) -> str:
        """The spelling of a token in the vocabulary: `<s>`, `<|im_end|>`, or a piece of text in its own alphabet.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """

    @functools.cached_property
    def control_tokens(self) -> Mapping[str, int]:
        """The ids of all control tokens by their spelling."""
        return {self.token_text(token_id): token_id for token_id in self.control_ids}

    @functools.cached_property
    def control_ids(self) -> frozenset[int]:
        """The ids of all control tokens."""
        return frozenset(token_id for token_id in range(self.vocab_size) if self.is_control(token_id))

    def check_id(self, token_id: int, source: str | None = None) -> int:
        """`token_id` as a Python integer.

        Args:
            token_id: the id.
            source: the file that names it, for messages; None: the tokenizer's own.

        Raises:
            TokenizerError: it is not an integer, or outside the vocabulary.
        """
        try:
            value = operator.index(token_id)
        except TypeError as error:
            raise TokenizerError(f"{source or self.source}: expected a token id, got {token_id!r}") from error
        if not 0 <= value < self.vocab_size:
            raise TokenizerError(
                f"{source or self.source}: token id {value} is outside the vocabulary of {self.vocab_size}"
            )
        return value


def _utf8_bytes(text: str) -> int:
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"character {error.start} of the text is the lone surrogate {text[error.start]!a}, "
            "which no token stands for; decode the input as UTF-8 first"
        ) from error


def encode_inside(tokenizer: Tokenizer, text: str, *, parse_special: bool = True) -> list[int]:
    """Token ids of `text` inside another text: what some tokenizers put before the first word is left out."""
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    if _spells(tokenizer, ids, text):
        return ids
    for before in _BEFORE:
        first = tokenizer.encode(before, add_special=False)
        both = tokenizer.encode(before + text, add_special=False, parse_special=parse_special)
        inside = both[len(first) :]
        if both[: len(first)] == first and _spells(tokenizer, inside, text):
            return inside
    return ids  # such as text that the tokenizer normalises


def _spells(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> bool:
    control = tokenizer.control_ids
    parts = [tokenizer.token_text(i).encode() if i in control else tokenizer.bytes_of(i) for i in ids]
    return b"".join(parts) == text.encode()
