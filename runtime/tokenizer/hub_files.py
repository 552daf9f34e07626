"""Reads what the small JSON files of a Hugging Face model say about its tokenizer.

tokenizer_config.json     bos_token, eos_token, add_bos_token, add_eos_token
                          added_tokens_decoder, tokenizer_class
special_tokens_map.json   bos_token, eos_token, where tokenizer_config.json lacks them; which added tokens are special
added_tokens.json         added tokens, where tokenizer_config.json lacks them
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
class AddedName:
    """A token that was added to a vocabulary.

    Attributes:
        text: its spelling.
        special: whether it is a control token.
        lstrip: whether white space before it is left out.
        rstrip: likewise, after it.
    """

    text: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True)
class NamedTokens:
    """Special tokens that the files name; None for those that they do not.

    Attributes:
        bos: the token that begins a text.
        eos: the token that ends a text.
        end_ids: ids that end an answer, each with the file that names it.
        add_bos: whether the BOS is added to a text.
        add_eos: whether the EOS is added to a text.
        added: by id, tokens that the vocabulary's own file lacks, or names otherwise.
        unknown: the token for text that has no other.
        kind: the name of the class that reads the tokenizer in transformers; `None` if no file says it.
        settings: what tokenizer_config.json says.
    """

    bos: str | None
    eos: str | None
    end_ids: Mapping[int, str]
    add_bos: bool | None
    add_eos: bool | None
    added: Mapping[int, AddedName]
    unknown: str | None
    kind: str | None
    settings: Mapping[str, Any]


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
        added=_added_beside(folder, names) | _added(config, path),
        unknown=_token(names, "unk_token", path),
        kind=_text(config, "tokenizer_class", path),
        settings=config,
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
        said = _read_json(path)
    except TokenizerError:
        return []
    text = said.get(file_keys.TEXT_SECTION)  # of a model that also takes images
    value = said.get("eos_token_id", text.get("eos_token_id") if isinstance(text, dict) else None)
    values = value if isinstance(value, list) else [value]
    return [token_id for token_id in values if type(token_id) is int and token_id >= 0]


def _text(config: Mapping[str, Any], key: str, path: Path) -> str | None:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise TokenizerError(f"{path}: `{key}` is {value!r:.60}, expected a name")
    return value


def _added(config: Mapping[str, Any], path: Path) -> dict[int, AddedName]:
    entries = config.get("added_tokens_decoder", {})
    added = {}
    for key, entry in entries.items() if isinstance(entries, dict) else [("?", None)]:
        if not (key.isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str)):
            raise TokenizerError(f"{path}: `added_tokens_decoder` has the entry {key!r:.20}: {entry!r:.60}")
        flags = (bool(entry.get(flag)) for flag in ("special", "lstrip", "rstrip"))
        added[int(key)] = AddedName(entry["content"], *flags)
    return added


def _added_beside(folder: Path, names: Mapping[str, Any]) -> dict[int, AddedName]:
    """The tokens of added_tokens.json; special are those that have a role."""
    path = folder / "added_tokens.json"
    added = _read_json(path)
    special = {text for value in names.values() for text in _contents(value)}
    for text, token_id in added.items():
        if type(token_id) is not int or token_id < 0:
            raise TokenizerError(f"{path}: the id of {text!r:.40} is {token_id!r:.20}, expected a number")
    return {token_id: AddedName(text, text in special) for text, token_id in added.items()}


def _contents(value: Any) -> list[str]:
    """The spellings of the tokens in a value of special_tokens_map.json."""
    if isinstance(value, list):
        return [text for each in value for text in _contents(each)]
    content = value.get("content") if isinstance(value, dict) else value
    return [content] if isinstance(content, str) else []
