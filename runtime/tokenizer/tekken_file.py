"""Loads tekken.json, Mistral's own format: tokens of bytes in the order in which they are merged, and their names.

Source: mistral-common, for the names of special tokens that older files leave out. All pairs of tokens that make a
third are merges, ordered by that: as the `tokenizers` library has them in models that were converted.
"""

import base64
import binascii
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.json_file import read_json_object
from mlxr.runtime.tokenizer.hub_files import read_named_tokens
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer, library_errors
from mlxr.runtime.tokenizer.token_bytes import byte_alphabet
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens
from mlxr.runtime.tokenizer.try_steps import try_steps

_MAX_BYTES = 64 << 20
_BOS, _EOS = "<s>", "</s>"
_USUAL = (
    *("<unk>", _BOS, _EOS, "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


def load_tekken(path: Path) -> LibraryTokenizer:
    """The tokenizer of a tekken.json.

    Raises:
        TokenizerError: it is corrupt.
    """
    document = read_json_object(path, _MAX_BYTES, TokenizerError)
    try:
        config = document["config"]
        num_special, size = int(config["default_num_special_tokens"]), int(config["default_vocab_size"])
        special = _special(document, num_special)
        tokens = [base64.b64decode(entry["token_bytes"], validate=True) for entry in document["vocab"]]
        del tokens[size - num_special :]
        split = {"type": "Split", "pattern": {"Regex": str(config["pattern"])}, "behavior": "Isolated", "invert": False}
        try_steps([("pre_tokenizer", split)], str(path))
        pattern = Regex(str(config["pattern"]))
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise TokenizerError(f"{path}: not as Mistral's tekken.json is: {error!r:.100}; get the file again") from error
    with library_errors(str(path)):
        library = _build(special, tokens, pattern)
    named = read_named_tokens(path.parent)
    ends = SpecialTokens(
        library.token_to_id(named.bos or _BOS),
        library.token_to_id(named.eos or _EOS),
        named.end_ids,
        True if named.add_bos is None else named.add_bos,
        named.add_eos,
    )
    return LibraryTokenizer(library, str(path), ends)


def _special(document: dict[str, Any], count: int) -> list[str]:
    """The names of the special tokens, whose ids come before the others."""
    listed = document.get("special_tokens")
    rows = [(name, rank) for rank, name in enumerate(_USUAL)]
    if listed:
        rows = [(str(entry["token_str"]), int(entry["rank"])) for entry in listed]
    names = {rank: name for name, rank in rows}
    return [names.get(rank, f"<SPECIAL_{rank}>") for rank in range(count)]


def _build(special: list[str], tokens: list[bytes], pattern: Regex) -> Library:
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    spelled = {token: "".join(map(letters.__getitem__, token)) for token in tokens}
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges = []
    for token in tokens:
        halves = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = sorted((ranks[a], ranks[b], a, b) for a, b in halves if a in ranks and b in ranks)
        merges += [(spelled[a], spelled[b]) for _, _, a, b in pairs]
    ids = {name: token_id for token_id, name in enumerate([*special, *spelled.values()])}
    library = Library(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return library
