"""Reads the vocabulary inside a GGUF file as llama.cpp does.

What a file lacks or says wrongly has llama.cpp's defaults, wherever the ids stay the same; only what leaves the ids
open is an error.

Source: llama-vocab.cpp of llama.cpp, for keys, defaults and exceptions.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.end_tokens import end_tokens, hidden_tokens
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
PREFIX = file_keys.TOKENIZER
_END_KEYS = (  # other tokens that end an answer
    "eot_token_id",
    "eom_token_id",
    "fim_pad_token_id",
    "fim_rep_token_id",
    "fim_sep_token_id",
)
BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
_PRIVATE = "\U0010fffd"  # in no text that means something
_KEEPS_WHITE_SPACE = ("<unk>", "<s>", "<|endoftext|>")


@dataclass(frozen=True)
class GgufVocabulary:
    """A GGUF file's vocabulary, in the order of the ids.

    Attributes:
        tokens: the spelling of each token, as it is in the file.
        spellings: likewise, for libraries: never empty, never the same twice, valid Unicode. A token that the file has
            a second time, or without a proper spelling, has one that no text has.
        ids: the id of each of `spellings`.
        kinds: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte: as in sentencepiece.
        not_normal: the ids of all other kinds than normal, in order: few of a large vocabulary.
        unknown_id: the token for text that the vocabulary cannot express, if the file names one.
        special: the ids that the file names, and what is added to a text.
    """

    tokens: list[str]
    spellings: list[str]
    ids: dict[str, int]
    kinds: list[int]
    not_normal: list[int]
    unknown_id: int | None
    special: SpecialTokens

    def of_kind(self, *kinds: int) -> list[int]:
        """Ids of these kinds, of which `NORMAL` is none, in order."""
        return [token_id for token_id in self.not_normal if self.kinds[token_id] in kinds]


def has_vocabulary(metadata: Mapping[str, Any]) -> bool:
    """Whether a GGUF file's metadata has a tokenizer."""
    kind = metadata.get(f"{PREFIX}model", "no_vocab")
    return bool(kind not in ("no_vocab", "none"))


def read_vocabulary(
    metadata: Mapping[str, Any],
    source: str,
    bos_id: int | None = None,
    eos_id: int | None = None,
    unknown_id: int | None = None,
) -> GgufVocabulary:
    """The tokens, their kinds and the special ids.

    Args:
        metadata: as `gguf_metadata` returns it.
        source: the name of the file, for messages.
        bos_id: the id of the BOS where the file names none, as all files of a kind have it.
        eos_id: likewise, of the EOS.
        unknown_id: likewise, of the unknown token.

    Raises:
        TokenizerError: the tokens or kinds are missing or malformed.
    """
    tokens = read_column(metadata, "tokens", str, source)
    if not tokens:
        raise TokenizerError(f"{source}: the vocabulary has no tokens; get the file again")
    spellings, ids = _spellings(tokens)
    kinds = _kinds(metadata, spellings, source)

    def named(key: str, default: int | None = None) -> int | None:
        default = default if default is not None and default < len(tokens) else None
        return read_id(metadata, f"{key}_token_id", len(tokens), default, source)

    bos, eos, unknown = named("bos", bos_id), named("eos", eos_id), named("unknown", unknown_id)
    if f"{PREFIX}token_type" not in metadata:  # files of 2023
        for token_id in (bos, eos, unknown):
            if token_id is not None:
                kinds[token_id] = CONTROL
    for name in hidden_tokens(ids):
        if kinds[ids[name]] == NORMAL:
            kinds[ids[name]] = CONTROL
    not_normal = [token_id for token_id, kind in enumerate(kinds) if kind != NORMAL]
    ends = [read_id(metadata, key, len(tokens), None, source) for key in _END_KEYS]
    special = SpecialTokens(
        bos_id=bos,
        eos_id=eos,
        end_ids=dict.fromkeys(
            (
                *(token_id for token_id in ends if token_id is not None),
                *end_tokens({spellings[i]: i for i in not_normal if kinds[i] in (CONTROL, USER_DEFINED)}),
            ),
            source,
        ),
        add_bos=read_flag(metadata, "add_bos_token", None, source),
        add_eos=read_flag(metadata, "add_eos_token", None, source),
    )
    return GgufVocabulary(tokens, spellings, ids, kinds, not_normal, unknown, special)


def _spellings(tokens: list[str]) -> tuple[list[str], dict[str, int]]:
    """See `GgufVocabulary`: the spellings, and the id of each."""
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) == len(tokens) and "" not in ids and _is_unicode("".join(tokens)):
        return tokens, ids  # nearly always; to look at each takes long
    seen: set[str] = set()
    spellings = []
    for token_id, token in enumerate(tokens):
        is_proper = token and token not in seen and _is_unicode(token)
        spellings.append(token if is_proper else f"{_PRIVATE}{token_id}")
        seen.add(token)
    return spellings, {spelling: token_id for token_id, spelling in enumerate(spellings)}


def _is_unicode(token: str) -> bool:
    try:
        token.encode("utf-8")
    except UnicodeEncodeError:  # bytes of the file that are not UTF-8
        return False
    return True


def _kinds(metadata: Mapping[str, Any], spellings: list[str], source: str) -> list[int]:
    if f"{PREFIX}token_type" in metadata:
        kinds = read_column(metadata, "token_type", int, source)[: len(spellings)]
        check_length(source, "token_type", kinds, len(spellings))
        if min(kinds) < NORMAL or max(kinds) > BYTE:
            kinds = [kind if NORMAL <= kind <= BYTE else NORMAL for kind in kinds]
    else:
        kinds = [NORMAL] * len(spellings)
    if BYTE not in kinds:
        named = [i for i, spelling in enumerate(spellings) if len(spelling) == 6 and BYTE_TOKEN.fullmatch(spelling)]
        if len(named) == 256:
            for token_id in named:
                kinds[token_id] = BYTE
    return kinds


def read_column(metadata: Mapping[str, Any], key: str, accepted: type | tuple[type, ...], source: str) -> list[Any]:
    """An array of the vocabulary.

    Raises:
        TokenizerError: it is missing, or has elements of another type.
    """
    column = metadata.get(PREFIX + key)
    if not isinstance(column, list) or not all(issubclass(kind, accepted) for kind in set(map(type, column))):
        raise TokenizerError(f"{source}: the vocabulary has no proper array `{PREFIX}{key}`")
    return column


def check_length(source: str, key: str, column: list[Any], num_tokens: int) -> None:
    """Checks that a column has a value for each token.

    Raises:
        TokenizerError: it has fewer.
    """
    if len(column) < num_tokens:
        raise TokenizerError(
            f"{source}: the vocabulary has {num_tokens} tokens and {len(column)} {key}; expected as many of each"
        )


def read_id(metadata: Mapping[str, Any], key: str, num_tokens: int, default: int | None, source: str) -> int | None:
    """The id of a token. `default`, if the file has no such key, or it is none of the vocabulary (-1, say).

    Raises:
        TokenizerError: it is not an integer.
    """
    value = metadata.get(PREFIX + key)
    if value is None:
        return default
    if type(value) is not int:
        raise TokenizerError(f"{source}: `{PREFIX}{key}` is {value!r:.60}, expected an id below {num_tokens}")
    return value if 0 <= value < num_tokens else default


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


def stripping_names(metadata: Mapping[str, Any], names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Those of the special tokens' names before which, and those after which, white space is left out.

    Files do not say it, their models' tokenizer.json does. The models are those that llama.cpp knows, by the names that
    it asks for.
    """
    name = str(metadata.get("general.name", "")).lower()
    architecture, pre = metadata.get(file_keys.ARCHITECTURE), metadata.get(f"{PREFIX}pre", "")
    kind = metadata.get(f"{PREFIX}model")
    if pre in ("roberta-bpe", "jina-v2-de", "jina-v2-es", "jina-v2-code") or architecture in (
        "nomic-bert-moe",
        "jina-bert-v3",
    ):
        return frozenset({"<mask>"}.intersection(names)), frozenset()
    if kind == "llama" and (architecture == "phi3" or "phi-3" in name or "phi3" in name):
        return frozenset(), frozenset(names).difference(_KEEPS_WHITE_SPACE)
    if pre == "modern-bert" or "modern-bert" in name:
        return frozenset({"[MASK]"}.intersection(names)), frozenset()
    return frozenset(), frozenset()
