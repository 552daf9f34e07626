"""A tokenizer of the `tokenizers` library: from a tokenizer.json, or built from a GGUF file's vocabulary."""

import codecs
import functools
import json
import math
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tokenizers

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.library_span import library_span
from mlxr.runtime.tokenizer.stream_decoder import ByteStreamDecoder
from mlxr.runtime.tokenizer.text_growth import check_decoder, growth
from mlxr.runtime.tokenizer.token_bytes import byte_level_texts, decoding_rule
from mlxr.runtime.tokenizer.token_span import TokenSpan
from mlxr.runtime.tokenizer.tokenizer import PairForm, SpecialTokens, Tokenizer


@contextmanager
def library_errors(source: str) -> Iterator[None]:
    """Turns whatever the library raises, its panics too, into a TokenizerError."""
    try:
        yield
    except (TokenizerError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, Exception) else str(error)
        raise TokenizerError(f"{source}: corrupt, or not of a kind that is known: {reason:.300}") from error


def _ids(library: tokenizers.Tokenizer, text: str) -> list[int]:
    """The ids of a short text: a fifth faster where the library was told to make no threads, as the server does."""
    if os.environ.get("TOKENIZERS_PARALLELISM") == "false":
        fast: list[int] = library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return fast
    ids: list[int] = library.encode(text, add_special_tokens=False).ids
    return ids


_LONG = 8192
"""Characters of a text that is encoded without keeping other threads from running: shorter ones take milliseconds."""


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, with its special tokens."""

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        source: str,
        special: SpecialTokens = SpecialTokens(),  # noqa: B008
        spellings: Sequence[str] | None = None,
        ids: Mapping[str, int] | None = None,
    ) -> None:
        """Wraps a tokenizer of the library, which must not be changed afterwards.

        Args:
            library: the tokenizer.
            source: the file that it comes from, for messages.
            special: its special tokens. If they do not say whether to add BOS and EOS, its post-processor decides.
            spellings: of all tokens, where the library has others for some; by default the library's.
            ids: the vocabulary that the library was given; None: it is asked for it, which takes longer.

        Raises:
            TokenizerError: it cannot be used, or an id is outside its vocabulary.
        """
        with library_errors(source):
            library.no_truncation()
            library.no_padding()
            self._added = library.get_added_tokens_decoder()
            vocabulary = library.get_vocab(with_added_tokens=False) if ids is None else ids
            model_size = max(vocabulary.values(), default=-1) + 1
            decoder = _state(library.decoder)
            self.rule = decoding_rule(decoder, source)
            check_decoder(decoder, 4 * max(map(len, vocabulary), default=0), source)
            parts = (_state(library.normalizer), _state(library.pre_tokenizer))
            self._growth = math.prod(growth(part, source) for part in parts)
            before, after = _around(library)
            self._pair = _around_two(library)
        self._library = library
        self._lock = threading.Lock()
        last_added = max(self._added, default=-1) + 1
        vocab_size = max(model_size, last_added) if spellings is None else len(spellings)
        super().__init__(source, vocab_size, min(model_size, vocab_size))
        self._spellings = spellings
        self._set_special(special.bos_id, special.eos_id, special.end_ids)
        if special.add_bos is not None and self.bos_id is not None:
            before = [self.bos_id] if special.add_bos else [i for i in before if i != self.bos_id]
        if special.add_eos is not None and self.eos_id is not None:
            after = [self.eos_id] if special.add_eos else [i for i in after if i != self.eos_id]
        self._set_added(before, after)
        self._bytes = functools.cache(self._find_bytes)
        self.texts: list[str | None] = [None] * self.vocab_size
        self._parts: set[int] = set()  # tokens that are no whole characters

    def pair_form(self) -> PairForm:
        """See `Tokenizer`."""
        return self._pair or super().pair_form()

    def as_json_file(self) -> str:
        """The content of a tokenizer.json that is this tokenizer."""
        content: str = self._library.to_str()
        return content

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        if len(text) > _LONG:
            library, own_ids = self._parsing if parse_special else self._not_parsing
            return self._encode_long(library, own_ids, text)
        with self._lock, library_errors(self.source):
            self._library.encode_special_tokens = not parse_special
            return _ids(self._library, text)

    def _encode_long(self, library: tokenizers.Tokenizer, own_ids: Mapping[int, int], text: str) -> list[int]:
        """Ids of a long text. Of several texts, the library lets other threads run meanwhile; of a single one, not."""
        with library_errors(self.source):
            ids: list[int] = library.encode_batch_fast([text], add_special_tokens=False)[0].ids  # without offsets
        return [own_ids.get(token_id, token_id) for token_id in ids] if own_ids else ids

    @functools.cached_property
    def _parsing(self) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        return self._copy({}, encodes_special=False)

    @functools.cached_property
    def _not_parsing(self) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        return self._copy({}, encodes_special=True)

    def _copy(self, names: Mapping[int, str], *, encodes_special: bool) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        """Another tokenizer of the same model, which no lock is needed for, and our ids of its added tokens.

        Args:
            names: of control tokens, where they are not their own.
            encodes_special: whether names of control tokens are ordinary text.
        """
        with self._lock, library_errors(self.source):
            copy = tokenizers.Tokenizer(self._library.model)  # shared, not copied
            copy.normalizer, copy.pre_tokenizer = self._library.normalizer, self._library.pre_tokenizer
            control = {i: token for i, token in self._added.items() if token.special}
            others = {i: token for i, token in self._added.items() if not token.special}
            copy.add_tokens(list(others.values()))
            copy.add_special_tokens(
                [
                    tokenizers.AddedToken(names[i], lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)
                    if i in names
                    else token
                    for i, token in control.items()
                ]
            )
            copy.encode_special_tokens = encodes_special
            ids = {names.get(i, token.content): i for i, token in self._added.items()}
            own_ids = {i: ids[token.content] for i, token in copy.get_added_tokens_decoder().items()}
        return copy, {i: own for i, own in own_ids.items() if i != own}

    def _encode_parts(self, parts: Sequence[str]) -> list[int]:
        secret, library, own_ids = self._renamed
        text = "".join(f"{secret}{part}" if index % 2 else part for index, part in enumerate(parts))
        if len(text) > _LONG:
            return self._encode_long(library, own_ids, text)
        with library_errors(self.source):
            ids = _ids(library, text)
        return [own_ids.get(token_id, token_id) for token_id in ids]

    @functools.cached_property
    def _renamed(self) -> tuple[str, tokenizers.Tokenizer, dict[int, int]]:
        """A secret, a tokenizer whose control tokens have it before their names, and our ids of its added tokens.

        Only the library knows what it does with the text beside a control token; so the whole text must be encoded at
        once, and no name that stands in it may be one of a control token by accident.
        """
        secret = secrets.token_hex(16)
        names = {i: f"{secret}{token.content}" for i, token in self._added.items() if token.special}
        renamed, own_ids = self._copy(names, encodes_special=False)
        return secret, renamed, own_ids

    @functools.cached_property
    def _span(self) -> TokenSpan | None:
        with self._lock, library_errors(self.source):
            return library_span(self._library)

    def stream_decoder(self) -> ByteStreamDecoder:
        """A decoder of one sequence, id by id."""
        return ByteStreamDecoder(self)

    def bytes_of(self, token_id: int) -> bytes:
        """See `Tokenizer`."""
        return self._bytes(self.check_id(token_id))

    def first_bytes_of(self, token_id: int) -> bytes | None:
        """The bytes of a token at the start of a text; None for control tokens."""
        token_id = self.check_id(token_id)
        return None if self.is_control(token_id) else self._spelled(token_id, self.rule.first_bytes_of)

    def _find_bytes(self, token_id: int) -> bytes:
        return b"" if self.is_control(token_id) else self._spelled(token_id, self.rule.bytes_of)

    def _spelled(self, token_id: int, bytes_of: Callable[[str], bytes]) -> bytes:
        if token_id in self._added:
            return (self.rule.bytes_of_added or bytes_of)(self._added[token_id].content)
        spelling = self.token_text(token_id)
        return bytes_of(spelling) if spelling else b""  # vocabularies may have gaps

    def learn(self, token_ids: Sequence[int]) -> None:
        """See `Tokenizer`."""
        texts, spellings, added, parts = self.texts, self._spellings, self._added, self._parts
        token_ids = [token_id for token_id in token_ids if token_id not in parts]
        if self.rule.is_byte_level:  # of a model with random weights, nearly each token of each step is new
            plain = [token_id for token_id in token_ids if token_id not in added]
            token_ids = [token_id for token_id in token_ids if token_id in added]
            if spellings is None:
                spelled = [spelling or "" for spelling in map(self._library.id_to_token, plain)]
            else:
                spelled = [spellings[token_id] for token_id in plain]
            for token_id, known in zip(plain, byte_level_texts(spelled) if plain else (), strict=True):
                texts[token_id] = known
                if known is None:
                    parts.add(token_id)
        for token_id in token_ids:
            data = self._find_bytes(token_id)
            text, num_used = codecs.utf_8_decode(data, "replace")
            if num_used == len(data):
                texts[token_id] = text
            else:
                parts.add(token_id)

    def token_text(self, token_id: int) -> str:
        """See `Tokenizer`."""
        token_id = self.check_id(token_id)
        if self._spellings is not None:
            return self._spellings[token_id]
        return self._library.id_to_token(token_id) or ""  # vocabularies may have gaps

    def is_control(self, token_id: int) -> bool:
        """Whether a token in the vocabulary stands for no text."""
        return token_id in self._added and bool(self._added[token_id].special)


def _state(part: Any) -> Mapping[str, Any] | None:
    """A part of the library's tokenizer as tokenizer.json writes it."""
    if part is None:
        return None
    state: Mapping[str, Any] = json.loads(part.__getstate__())
    return state


def _around(library: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and after a text."""
    if not library.num_special_tokens_to_add(False):
        return [], []
    encoding = library.encode("a", add_special_tokens=True)
    ids, mask = encoding.ids, encoding.special_tokens_mask
    first = mask.index(0) if 0 in mask else len(mask)
    last = len(mask) - mask[::-1].index(0) if 0 in mask else first
    return list(ids[:first]), list(ids[last:])


def _around_two(library: tokenizers.Tokenizer) -> PairForm | None:
    """What the post-processor puts around two texts; None if it puts nothing between them."""
    if not library.num_special_tokens_to_add(True):
        return None
    pair = library.encode("a", "a", add_special_tokens=True)
    first, second = ([place for place, of in enumerate(pair.sequence_ids) if of == number] for number in (0, 1))
    if not first or not second:
        return None
    between = pair.ids[first[-1] + 1 : second[0]]
    return PairForm(pair.ids[: first[0]], between, pair.ids[second[-1] + 1 :], has_types=pair.type_ids[second[0]] == 1)
