"""Reads and checks the vocabulary inside a GGUF file, and makes the tokenizer of its kind.

Kinds: `llama` (sentencepiece) and `gpt2` (byte-level BPE). Others are refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.end_tokens import end_tokens
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens, Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
PREFIX = file_keys.TOKENIZER
_END_KEYS = ("eot_token_id", "eom_token_id")  # other tokens that end a turn in chat models


@dataclass(frozen=True)
class Vocabulary:
    """A GGUF file's vocabulary, in the order of the ids.

    Attributes:
        tokens: the spelling of each token; never empty, never the same twice.
        kinds: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte: as in sentencepiece.
        special: the ids that the file names.
    """

    tokens: list[str]
    kinds: list[int]
    special: SpecialTokens

    def of_kind(self, kind: int) -> list[int]:
        """Ids of a kind."""
        return [token_id for token_id, own in enumerate(self.kinds) if own == kind]


def has_vocabulary(metadata: Mapping[str, Any]) -> bool:
    """Whether a GGUF file's metadata has a tokenizer."""
    kind = metadata.get(f"{PREFIX}model", "no_vocab")
    return bool(kind not in ("no_vocab", "none"))


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer in a GGUF file's metadata.

    Args:
        metadata: as `gguf_metadata` returns it.
        source: the name of the file, for messages.

    Raises:
        TokenizerError: the vocabulary is malformed, or of a kind that is not supported.
    """
    kind = metadata.get(f"{PREFIX}model")
    if kind == "llama":
        from mlxr.runtime.tokenizer.gguf_sentencepiece import sentencepiece_from_gguf  # noqa: PLC0415 (one of two)

        return sentencepiece_from_gguf(metadata, source)
    if kind == "gpt2":
        from mlxr.runtime.tokenizer.gguf_byte_level import byte_level_from_gguf  # noqa: PLC0415 (one of two)

        return byte_level_from_gguf(metadata, source)
    raise TokenizerError(
        f"{source}: its tokenizer is of the kind {kind!r:.60}, expected 'llama' (sentencepiece) or 'gpt2' (byte-level "
        "BPE). With the model's own tokenizer.json it works: name its folder with --tokenizer"
    )


def read_vocabulary(metadata: Mapping[str, Any], source: str) -> Vocabulary:
    """The tokens, their kinds and the special ids.

    Raises:
        TokenizerError: they are malformed or contradict each other.
    """
    tokens = read_column(metadata, "tokens", str, source)
    kinds = read_column(metadata, "token_type", int, source)
    check_lengths(source, tokens=tokens, token_type=kinds)
    seen: set[str] = set()
    for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        where = f"{source}: token {token_id} of the vocabulary"
        if not NORMAL <= kind <= BYTE:
            raise TokenizerError(f"{where} has the unknown type {kind}")
        try:
            token.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TokenizerError(f"{where} is not UTF-8: {token!a}") from error
        if not token or token in seen:
            raise TokenizerError(f"{where} is {'empty' if not token else f'{token!a} for a second time'}")
        seen.add(token)
    named = [read_id(metadata, key, len(tokens), source) for key in _END_KEYS]
    by_name = end_tokens({tokens[i]: i for i, kind in enumerate(kinds) if kind in (CONTROL, USER_DEFINED)})
    special = SpecialTokens(
        bos_id=read_id(metadata, "bos_token_id", len(tokens), source),
        eos_id=read_id(metadata, "eos_token_id", len(tokens), source),
        end_ids=dict.fromkeys((*(token_id for token_id in named if token_id is not None), *by_name), source),
        add_bos=read_flag(metadata, "add_bos_token", None, source),
        add_eos=read_flag(metadata, "add_eos_token", None, source),
    )
    return Vocabulary(tokens, kinds, special)


def read_column(metadata: Mapping[str, Any], key: str, accepted: type | tuple[type, ...], source: str) -> list[Any]:
    """An array of the vocabulary.

    Raises:
        TokenizerError: it is missing, or has elements of another type.
    """
    column = metadata.get(PREFIX + key)
    if not isinstance(column, list) or not all(isinstance(value, accepted) for value in column):
        raise TokenizerError(f"{source}: the vocabulary has no proper array `{PREFIX}{key}`")
    return column


def check_lengths(source: str, **columns: list[Any]) -> None:
    """Checks that all columns of a vocabulary have the same length.

    Raises:
        TokenizerError: they are not.
    """
    if len({len(column) for column in columns.values()}) != 1:
        counts = " and ".join(f"{len(column)} {name}" for name, column in columns.items())
        raise TokenizerError(f"{source}: the vocabulary has {counts}; expected as many of each")


def read_id(metadata: Mapping[str, Any], key: str, num_tokens: int, source: str) -> int | None:
    """The id of a token; None if the file has no such key.

    Raises:
        TokenizerError: it is not an id of the vocabulary.
    """
    value = metadata.get(PREFIX + key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < num_tokens:
        raise TokenizerError(f"{source}: `{PREFIX}{key}` is {value!r}, expected an id below {num_tokens}")
    return value


def read_flag(metadata: Mapping[str, Any], key: str, default: bool | None, source: str) -> bool | None:
    """A flag; `default` if the file has no such key.

    Raises:
        TokenizerError: it is neither true nor false.
    """
    value = metadata.get(PREFIX + key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise TokenizerError(f"{source}: `{PREFIX}{key}` is {value!r}, expected true or false")
    return value
