"""Reads what the small JSON files of a Hugging Face model say about its tokenizer.

tokenizer_config.json     bos_token, eos_token, add_bos_token, add_eos_token
special_tokens_map.json   bos_token, eos_token, where tokenizer_config.json lacks them
generation_config.json    eos_token_id: one id or several that end an answer
config.json               eos_token_id, likewise
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.json_file import read_json_object

_MAX_JSON_BYTES = 16 << 20


@dataclass(frozen=True)
class NamedTokens:
    """Special tokens that the files name; None for those that they do not.

    Attributes:
        bos: the token that begins a text.
        eos: the token that ends a text.
        end_ids: ids that end an answer, each with the file that names it.
        add_bos: whether the BOS is added to a text.
        add_eos: whether the EOS is added to a text.
        added: by id, tokens that a sentencepiece model lacks: their text, and whether they are control tokens.
    """

    bos: str | None
    eos: str | None
    end_ids: Mapping[int, str]
    add_bos: bool | None
    add_eos: bool | None
    added: Mapping[int, tuple[str, bool]]


def read_named_tokens(folder: Path) -> NamedTokens:
    """The special tokens of the model in `folder`.

    Raises:
        TokenizerError: a file is no JSON, or says something else than expected.
    """
    path = folder / "tokenizer_config.json"
    config = _read_json(path)
    names = _read_json(folder / "special_tokens_map.json") | {
        key: value for key, value in config.items() if value is not None
    }
    return NamedTokens(
        bos=_token(names, "bos_token", path),
        eos=_token(names, "eos_token", path),
        end_ids={
            token_id: str(folder / name)
            for name in (file_keys.GENERATION_FILE, file_keys.CONFIG_FILE)
            for token_id in _end_ids(folder / name)
        },
        add_bos=_flag(config, "add_bos_token", path),
        add_eos=_flag(config, "add_eos_token", path),
        added=_added(config, path),
    )


def _read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object; an empty one where there is no file."""
    if not path.is_file():
        return {}
    return read_json_object(path, _MAX_JSON_BYTES, TokenizerError)


def _token(names: Mapping[str, Any], key: str, path: Path) -> str | None:
    value = names.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise TokenizerError(f"{path}: `{key}` is {value!r:.60}, expected a token's text")
    return text


def _flag(config: Mapping[str, Any], key: str, path: Path) -> bool | None:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise TokenizerError(f"{path}: `{key}` is {value!r:.60}, expected true or false")
    return value


def _end_ids(path: Path) -> list[int]:
    """The ids that a file names; none from what is no id or no JSON, which keeps no model from loading elsewhere."""
    try:
        value = _read_json(path).get("eos_token_id")
    except TokenizerError:
        return []
    values = value if isinstance(value, list) else [value]
    return [token_id for token_id in values if type(token_id) is int and token_id >= 0]


def _added(config: Mapping[str, Any], path: Path) -> dict[int, tuple[str, bool]]:
    entries = config.get("added_tokens_decoder", {})
    added = {}
    for key, entry in entries.items() if isinstance(entries, dict) else [("?", None)]:
        if not (key.isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str)):
            raise TokenizerError(f"{path}: `added_tokens_decoder` has the entry {key!r:.20}: {entry!r:.60}")
        added[int(key)] = (entry["content"], bool(entry.get("special")))
    return added
