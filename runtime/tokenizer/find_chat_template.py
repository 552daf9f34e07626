"""Finds the chat template that belongs to a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import ChatTemplateError, TokenizerError
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.hub_files import read_chat_template, read_template_file
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights import gguf_metadata
from mlxr.runtime.weights.gguf_parts import only_model

_MOST_CHARACTERS = 1 << 20


class ReadTemplate(NamedTuple):
    """A chat template that was read already: what a GGUF file says of it, or what a user gave."""

    path: Path
    text: Any
    """Unchecked; None where it says nothing."""


def load_chat_template(
    places: Sequence[Path | ReadTemplate], tokenizer: Tokenizer, file: str | Path | None = None
) -> ChatTemplate:
    """The chat template of a model.

    Args:
        places: where to look, in this order: .gguf files, which may contain a template, or the templates of GGUF files
            that have been read; folders; other files, whose folder is searched.
        tokenizer: the model's tokenizer, which has the special tokens that a template may write.
        file: a Jinja2 file to use instead.

    Raises:
        ChatTemplateError: there is none.
        TokenizerError: a file that should contain it cannot be read.
    """
    tokens = {
        name: tokenizer.token_text(token_id)
        for name, token_id in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id))
        if token_id is not None
    }
    if file is not None:
        return ChatTemplate(read_template_file(Path(file)), str(file), tokens)
    return ChatTemplate(*find_chat_template(places), tokens)


def find_chat_template(places: Sequence[Path | ReadTemplate]) -> tuple[str, str]:
    """The text of a model's chat template, and the file that has it.

    Args:
        places: as for `load_chat_template`.

    Raises:
        ChatTemplateError: there is none.
        TokenizerError: a file that should contain it cannot be read.
    """
    for place in places:
        own = place if isinstance(place, ReadTemplate) else _read_gguf(place)
        if own is not None and own.text is not None:
            return _checked(own), str(own.path)
        path = place.path if isinstance(place, ReadTemplate) else place
        if (beside := read_chat_template(path if path.is_dir() else path.parent)) is not None:
            return beside
    last = places[-1]
    raise ChatTemplateError(
        f"{last.path if isinstance(last, ReadTemplate) else last}: the model comes without a chat template (none in a "
        ".gguf file, and no chat_template.jinja or tokenizer_config.json with one); it may not be made for "
        "conversations. Give one with --template FILE"
    )


def _read_gguf(place: Path) -> ReadTemplate | None:
    """What a GGUF file says, or the only GGUF model of a folder."""
    file = only_model(file for file in place.glob("*.gguf") if file.is_file()) if place.is_dir() else place
    if file is None or file.suffix.lower() != ".gguf":
        return None
    return ReadTemplate(file, gguf_metadata(file).get(file_keys.CHAT_TEMPLATE))


def _checked(template: ReadTemplate) -> str:
    text = template.text
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
        raise TokenizerError(
            f"{template.path}: `{file_keys.CHAT_TEMPLATE}` is {text!r:.60}, expected text of at most "
            f"{_MOST_CHARACTERS} characters"
        )
    return text
