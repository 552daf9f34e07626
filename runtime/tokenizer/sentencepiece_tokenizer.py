"""A tokenizer that is a sentencepiece model, from its own file or rebuilt from a GGUF file's vocabulary."""

import functools
import re
from collections.abc import Mapping, Sequence

from sentencepiece import SentencePieceProcessor

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.model_proto import NO_PIECE, WITHOUT_PREFIX
from mlxr.runtime.tokenizer.proto_fields import proto_fields
from mlxr.runtime.tokenizer.sentencepiece_stream import SentencepieceStreamDecoder
from mlxr.runtime.tokenizer.text_growth import longest_replacement
from mlxr.runtime.tokenizer.token_names import TokenNames
from mlxr.runtime.tokenizer.token_span import TokenSpan
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens, Tokenizer

# A status code, and perhaps a line of the library's source.
_INTERNAL = re.compile(r"^[A-Z_]+: (src/.*)?", re.DOTALL)
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in pieces
_BYTE_LENGTH = len("<0x00>")
_AT_ONCE = 1 << 16
"""Characters of a text whose ids are made in one call, and ids of a longer one: other threads can run in between."""


class SentencepieceTokenizer(Tokenizer):
    """A sentencepiece model with its special tokens."""

    def __init__(
        self,
        proto: bytes,
        source: str,
        special: SpecialTokens = SpecialTokens(),  # noqa: B008
        required_size: int | None = None,
        names: TokenNames | None = None,
        spellings: Sequence[str] | None = None,
        escapes_spaces: bool = True,
        prefixes_once: bool = False,
        rewriting: tuple[bytes, bool] | None = None,
    ) -> None:
        """Makes the tokenizer of a serialised sentencepiece ModelProto.

        Args:
            proto: the model.
            source: the file that it comes from, for messages.
            special: what other files say about its special tokens. By default they are those of the model, and a text
                gets the BOS but no EOS.
            required_size: how many ids a model with this tokenizer must have; by default all.
            names: the tokens that are found by their names, and so those without text; by default the control tokens of
                the model.
            spellings: of all tokens, where the model has others; the model may have more tokens, in whose place text
                has the unknown one.
            escapes_spaces: whether U+2581 stands for a space in pieces.
            prefixes_once: whether a model that puts a space before a text puts none before the text after a control
                token.
            rewriting: see `read_rewriting`; None: read from the model when it is needed.

        Raises:
            TokenizerError: the model is corrupt, or an id is outside its vocabulary.
        """
        self._model = self._inner = SentencePieceProcessor()
        self._given = rewriting
        self._space = _SPACE if escapes_spaces else " "
        try:
            self._model.LoadFromSerializedProto(proto)
            size: int = self._model.vocab_size()
            if spellings is None:
                spellings = [self._model.id_to_piece(token_id) for token_id in range(size)]
            self.unknown_text: str = self._model.decode([self._model.unk_id()])
            """What an unknown token decodes to."""
        except (RuntimeError, ValueError, IndexError) as error:
            reason = _INTERNAL.sub("", str(error).strip().rstrip("."))
            because = f" ({reason})" if reason else ""
            raise TokenizerError(
                f"{source}: corrupt, or not a sentencepiece model{because}; get the file again"
            ) from error
        self._pieces = [*spellings]
        size, model_size = len(self._pieces), size
        self._has_more = size < model_size
        self._names = names or TokenNames(
            {piece: i for i, piece in enumerate(self._pieces) if self._model.is_control(i)}, {}
        )
        self._hidden = frozenset(self._names.control.values())
        if prefixes_once:
            self._inner = SentencePieceProcessor()
            self._inner.LoadFromSerializedProto(proto + WITHOUT_PREFIX)
        self._unknown_id = int(self._model.unk_id())
        self.texts: list[str | None] = [None] * size
        """What `text_of` has returned so far, by token."""
        super().__init__(source, size, required_size)
        bos_id = self._model.bos_id() if special.bos_id is None else special.bos_id
        eos_id = self._model.eos_id() if special.eos_id is None else special.eos_id
        self._set_special(None if bos_id == -1 else bos_id, None if eos_id == -1 else eos_id, special.end_ids)
        before = [self.bos_id] if self.bos_id is not None and special.add_bos is not False else []
        after = [self.eos_id] if self.eos_id is not None and special.add_eos else []
        self._set_added(before, after)
        own = (self._model.id_to_piece(token_id) for token_id in range(model_size))
        spaced = next((i for i, piece in enumerate(own) if piece.startswith(_SPACE) and self._is_text(i)), None)
        self.drops_first_space = spaced is not None and self._model.decode([spaced]) != self.text_of(spaced)
        """Whether decoding leaves out a space before the first character, which encoding had put there."""
        lone = self._model.piece_to_id(_SPACE)  # or the unknown one's, which is no text
        self.drops_leading_spaces = self._is_text(lone) and self._model.decode([lone] * 2) == ""
        """Whether decoding leaves out every lone space token before the first other text."""

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        return self._ids(self._names.split(text, parse_special))

    def _encode_parts(self, parts: Sequence[str]) -> list[int]:
        flat: list[str | int] = []
        for part in self._names.joined(parts, self._names.control):
            flat += [part] if isinstance(part, int) else self._names.split(part, parse_special=False)
        return self._ids(flat)

    def _ids(self, parts: Sequence[str | int]) -> list[int]:
        ids: list[int] = []
        # Each text between tokens is encoded by itself, with a space before it if the model adds one to a text: most
        # models that use such files were trained like this.
        for index, part in enumerate(parts):
            ids += [part] if isinstance(part, int) else _ids_of(self._inner if index else self._model, part)
        if self._has_more:
            unknown = [i for i in (self._model.unk_id(),) if i < self.vocab_size]
            ids = [own for i in ids for own in ([i] if i < self.vocab_size else unknown)]
        return ids

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """The ids of all control tokens by their spelling."""
        return self._names.control

    @functools.cached_property
    def _growth(self) -> float:
        return sentencepiece_growth(self._rewriting[0], self.source)

    @functools.cached_property
    def _rewriting(self) -> tuple[bytes, bool]:
        return read_rewriting(self._model.serialized_model_proto()) if self._given is None else self._given

    @functools.cached_property
    def _span(self) -> TokenSpan | None:
        num_bytes = sum(self._model.is_byte(token_id) for token_id in range(self.vocab_size))
        span = sentencepiece_span(*self._rewriting, self._pieces, num_bytes)
        return span and TokenSpan(span.characters, span.drops_white_space or self._names.strips)

    def stream_decoder(self) -> SentencepieceStreamDecoder:
        """A decoder of one sequence, id by id."""
        return SentencepieceStreamDecoder(self)

    def as_model_file(self) -> bytes:
        """The content of a tokenizer.model that is this tokenizer."""
        content: bytes = self._model.serialized_model_proto()
        return content

    def token_text(self, token_id: int) -> str:
        """See `Tokenizer`."""
        return self._pieces[self.check_id(token_id)]

    def bytes_of(self, token_id: int) -> bytes:
        """See `Tokenizer`."""
        byte = self.byte_of(self.check_id(token_id))
        if byte is not None:
            return bytes([byte])
        return self.text_of(token_id).encode("utf-8") if self._is_text(token_id) else b""

    def is_control(self, token_id: int) -> bool:
        """Whether a token in the vocabulary stands for no text."""
        return token_id in self._hidden

    def is_unknown(self, token_id: int) -> bool:
        """Whether it is the token for text that the vocabulary cannot express."""
        return token_id not in self._hidden and bool(self._model.is_unknown(token_id))

    def byte_of(self, token_id: int) -> int | None:
        """The byte that a byte token stands for; None for other tokens."""
        return self._bytes.get(token_id)

    @functools.cached_property
    def _bytes(self) -> dict[int, int]:
        """The bytes of byte tokens: to ask the library for each takes longer than all else that one needs."""
        likely = [(token_id, piece) for token_id, piece in enumerate(self._pieces) if len(piece) == _BYTE_LENGTH]
        return {token_id: int(piece[1:-1], 16) for token_id, piece in likely if self._model.is_byte(token_id)}

    def text_of(self, token_id: int) -> str:
        """The text of a token that is neither control, unknown nor byte, anywhere but at the start of a text."""
        text = self._pieces[token_id].replace(self._space, " ")
        if text.startswith(NO_PIECE):
            text = ""
        if not text.isascii():  # bytes of GGUF files that are not UTF-8
            text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        self.texts[token_id] = text
        return text

    def plain_text_of(self, token_id: int) -> str | None:
        """`text_of` a token in the vocabulary; None: it is control, unknown or byte."""
        return self.text_of(token_id) if self._is_text(token_id) else None

    def learn(self, token_ids: Sequence[int]) -> None:
        """See `Tokenizer`."""
        for token_id in token_ids:
            self.plain_text_of(token_id)

    def _is_text(self, token_id: int) -> bool:
        if token_id in self._hidden or token_id == self._unknown_id:
            return False
        return token_id not in self._bytes


def _ids_of(model: SentencePieceProcessor, text: str) -> list[int]:
    """The ids of a text. While the library looks for pieces other threads run, but not while it makes a list."""
    if len(text) <= _AT_ONCE:
        short: list[int] = model.encode(text)
        return short
    array, ids = model.encode(text, return_type="numpy"), list[int]()
    for start in range(0, len(array), _AT_ONCE):
        ids += array[start : start + _AT_ONCE].tolist()
    return ids


def sentencepiece_span(charsmap: bytes, drops: bool, pieces: list[str], num_bytes: int) -> TokenSpan | None:
    """The span of a sentencepiece model that has a token for every byte and does not change text; else None.

    Args:
        charsmap: the table by which it rewrites text; empty: there is none.
        drops: whether it leaves out repeated spaces.
        pieces: its vocabulary.
        num_bytes: how many pieces are bytes.
    """
    if charsmap or num_bytes < 256:
        return None
    return TokenSpan(max(map(len, pieces)), drops)


def sentencepiece_growth(charsmap: bytes, source: str) -> float:
    """Most bytes that a model makes of a byte of text before it looks for pieces: a space becomes three."""
    return 3.0 * (longest_replacement(charsmap, source) if charsmap else 1)


def read_rewriting(proto: bytes) -> tuple[bytes, bool]:
    """The table by which a model rewrites text, if it has one, and whether it leaves out repeated spaces.

    Source: sentencepiece_model.proto: ModelProto.normalizer_spec = 3, of whose fields 2 is the table and 4 the flag.
    """
    charsmap, drops = b"", True
    for field in proto_fields(proto):
        if field.number == 3 and isinstance(field.value, bytes):
            for inner in proto_fields(field.value):
                if inner.number == 2 and isinstance(inner.value, bytes) and inner.value:
                    charsmap = inner.value
                drops = bool(inner.value) if inner.number == 4 else drops
    return charsmap, drops
