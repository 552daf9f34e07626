"""The tokenizer: a sentencepiece model with its special tokens.

Invariant: sentencepiece sees only ids that are in its vocabulary and text that is Unicode, so nothing but a
TokenizerError comes out of it.
"""

import operator
from collections.abc import Iterable, Sequence

from sentencepiece import SentencePieceProcessor

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.stream_decoder import StreamDecoder

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in pieces


class Tokenizer:
    """Text to token ids and back. Immutable, and safe to share between threads."""

    def __init__(
        self,
        proto: bytes,
        source: str,
        bos_id: int | None = None,
        eos_id: int | None = None,
        eos_ids: Iterable[int] = (),
    ) -> None:
        """Build the tokenizer of a serialised sentencepiece ModelProto.

        Args:
            proto: the model.
            source: where it comes from, for messages.
            bos_id: begins a sequence; the model's own by default.
            eos_id: ends a sequence; the model's own by default.
            eos_ids: further ids that end a sequence.

        Raises:
            TokenizerError: the model is corrupt, or an id is outside its vocabulary.
        """
        self._model = SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(proto)
            self.vocab_size: int = self._model.vocab_size()
            """Number of ids."""
            self._pieces: list[str] = [self._model.id_to_piece(token_id) for token_id in range(self.vocab_size)]
            self.unknown_text: str = self._model.decode([self._model.unk_id()])
            """What an unknown token decodes to."""
        except (RuntimeError, ValueError, IndexError) as error:
            raise TokenizerError(
                f"{source}: corrupt, or not a sentencepiece model ({str(error).strip()}); get the file again"
            ) from error
        self.source = source
        """Where the tokenizer comes from."""
        self.bos_id = self._special(self._model.bos_id() if bos_id is None else bos_id)
        """Begins a sequence; None where the model has no such token."""
        self.eos_id = self._special(self._model.eos_id() if eos_id is None else eos_id)
        """Ends a sequence; None where the model has no such token."""
        found = (self._special(token_id) for token_id in (self.eos_id, *eos_ids) if token_id is not None)
        self.eos_ids = frozenset(token_id for token_id in found if token_id is not None)
        """Every id that ends a sequence."""
        spaced = next(
            (i for i, piece in enumerate(self._pieces) if piece.startswith(_SPACE) and self._is_text(i)), None
        )
        self.drops_first_space = spaced is not None and self._model.decode([spaced]) != self.text_of(spaced)
        """Whether decoding leaves out a space before the first character, which encoding had put there."""
        lone = self._pieces.index(_SPACE) if _SPACE in self._pieces else None
        self.drops_leading_spaces = lone is not None and self._is_text(lone) and self._model.decode([lone] * 2) == ""
        """Whether decoding leaves out every lone space token before the first other text."""

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Token ids of `text`, with BOS before them where the model has one and `add_bos` is set.

        Control tokens spelled out in `text` are text like any other.

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
        ids: list[int] = self._model.encode(text)
        return [self.bos_id, *ids] if add_bos and self.bos_id is not None else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`. Control tokens have none; bytes that are no UTF-8 become U+FFFD each.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        text: str = self._model.decode([self.check_id(token_id) for token_id in ids])
        return text

    def stream_decoder(self) -> StreamDecoder:
        """A decoder of one sequence, id by id."""
        return StreamDecoder(self)

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

    def is_control(self, token_id: int) -> bool:
        """Whether a token in the vocabulary stands for no text."""
        return bool(self._model.is_control(token_id))

    def is_unknown(self, token_id: int) -> bool:
        """Whether it is the token of text that the vocabulary cannot spell."""
        return bool(self._model.is_unknown(token_id))

    def byte_of(self, token_id: int) -> int | None:
        """The byte that a byte token stands for; None for other tokens."""
        return int(self._pieces[token_id][1:-1], 16) if self._model.is_byte(token_id) else None

    def text_of(self, token_id: int) -> str:
        """The text of a token that is neither control, unknown nor byte, wherever it stands but first."""
        return self._pieces[token_id].replace(_SPACE, " ")

    def _special(self, token_id: int) -> int | None:
        """A special token's id, checked; None for sentencepiece's -1."""
        return None if token_id == -1 else self.check_id(token_id)

    def _is_text(self, token_id: int) -> bool:
        return not (self.is_control(token_id) or self.is_unknown(token_id) or self._model.is_byte(token_id))
