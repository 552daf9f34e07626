"""Loads a sentencepiece model file, with the tokens that the JSON files beside it add to it or name otherwise."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer.gguf_vocabulary import BYTE, CONTROL, UNKNOWN, UNUSED, USER_DEFINED
from mlxr.runtime.tokenizer.hub_files import NamedTokens, read_named_tokens
from mlxr.runtime.tokenizer.model_proto import NO_PIECE, Piece, changed_pieces, piece_kinds
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr.runtime.tokenizer.token_names import TokenNames
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens, Tokenizer

_MOST_ADDED = 1 << 17


def load_sentencepiece(path: Path) -> SentencepieceTokenizer:
    """The tokenizer of a sentencepiece model file.

    Raises:
        TokenizerError: it is corrupt, or a file beside it is.
    """
    proto = path.read_bytes()
    tokenizer = SentencepieceTokenizer(proto, str(path))
    named = read_named_tokens(path.parent)
    own = tokenizer.vocab_size
    changes = _changes(tokenizer, piece_kinds(proto) if named.added else [], named, path)
    if changes:
        proto = changed_pieces(proto, changes)
        tokenizer = SentencepieceTokenizer(proto, str(path))
    ids = {tokenizer.token_text(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    special = SpecialTokens(
        ids.get(named.bos) if named.bos is not None else None,
        ids.get(named.eos) if named.eos is not None else None,
        named.end_ids,
        named.add_bos,
        named.add_eos,
    )
    names = TokenNames(
        {**tokenizer.control_tokens, **_read_as_control(named, ids)},
        {},
        frozenset(token_id for token_id, token in named.added.items() if token.lstrip),
        frozenset(token_id for token_id, token in named.added.items() if token.rstrip),
    )
    if names.strips:
        names = TokenNames(names.control, _found_always(named), names.strips_left, names.strips_right)
    prefixes_once = named.settings.get("legacy") is False
    return SentencepieceTokenizer(proto, str(path), special, own, names, prefixes_once=prefixes_once)


def _changes(tokenizer: Tokenizer, kinds: Sequence[int], named: NamedTokens, path: Path) -> dict[int, Piece]:
    """The pieces that are not as in the model's file."""
    own = tokenizer.vocab_size
    most = max(named.added, default=0)
    if most >= own + _MOST_ADDED:
        raise TokenizerError(
            f"{path.parent}: adds a token of the id {most} to the {own} of {path.name}; get its JSON files again"
        )
    ids = {tokenizer.token_text(token_id): token_id for token_id in range(own)} if named.added else {}
    changes: dict[int, Piece] = {}
    for token_id, token in named.added.items():
        kind = CONTROL if token.special else USER_DEFINED
        is_there = token_id < own and tokenizer.token_text(token_id) == token.text
        if is_there and kinds[token_id] in (kind, CONTROL, UNKNOWN, BYTE):
            continue
        changes[token_id] = Piece(token.text, 0, kind)
        other = ids.get(token.text, token_id)
        if other not in (token_id, *named.added):
            changes[other] = Piece(f"{NO_PIECE}{other}", 0, UNUSED)
    return changes


def _read_as_control(named: NamedTokens, ids: Mapping[str, int]) -> dict[str, int]:
    special = {token.text: token_id for token_id, token in named.added.items() if token.special}
    if named.unknown is not None and named.unknown in ids:
        special[named.unknown] = ids[named.unknown]
    return special


def _found_always(named: NamedTokens) -> dict[str, int]:
    return {token.text: token_id for token_id, token in named.added.items() if not token.special}
