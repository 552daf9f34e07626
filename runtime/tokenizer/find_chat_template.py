"""Finds the chat templates that belong to a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.template_files import (
    NamedTemplates,
    gguf_templates,
    read_template_file,
    read_templates,
)
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights import gguf_metadata
from mlxr.runtime.weights.gguf_parts import only_model


class ReadMetadata(NamedTuple):
    """What the metadata of a GGUF file, which were read already, say of templates; unchecked."""

    path: Path
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, metadata: Mapping[str, Any]) -> "ReadMetadata":
        """Keeps no more of the metadata than it needs: they have the vocabulary."""
        return cls(path, {key: text for key, text in metadata.items() if key.startswith(file_keys.CHAT_TEMPLATE)})


Place = Path | ReadMetadata | NamedTemplates
"""Where templates may be: a .gguf file, or what was read of one; a folder, or a file in it; or templates themselves."""


def load_chat_template(places: Sequence[Place], tokenizer: Tokenizer, file: str | Path | None = None) -> ChatTemplate:
    """The chat template of a model, with the one that it has for tools.

    Args:
        places: where to look, in this order.
        tokenizer: the model's tokenizer, which has the special tokens that a template may write.
        file: a Jinja2 file to use instead, for everything.

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
    found = find_chat_templates(places)
    return ChatTemplate(found.text, found.source, tokens, found.tool_use)


def find_chat_templates(places: Sequence[Place]) -> NamedTemplates:
    """The texts of a model's chat templates.

    Args:
        places: as for `load_chat_template`.

    Raises:
        ChatTemplateError: there is none.
        TokenizerError: a file that should contain them cannot be read.
    """
    for place in places:
        if isinstance(place, NamedTemplates):
            return place
        read = place if isinstance(place, ReadMetadata) else _read_gguf(place)
        if read is not None and (own := gguf_templates(read.metadata, read.path)) is not None:
            return own
        path = place.path if isinstance(place, ReadMetadata) else place
        if (beside := read_templates(path if path.is_dir() else path.parent)) is not None:
            return beside
    last = places[-1]
    raise ChatTemplateError(
        f"{last.path if isinstance(last, ReadMetadata) else last}: the model comes without a chat template (none in a "
        ".gguf file, and no chat_template.jinja or tokenizer_config.json with one); it may not be made for "
        "conversations. Give one with --template FILE"
    )


def _read_gguf(place: Path) -> ReadMetadata | None:
    """What a GGUF file says, or the only GGUF model of a folder."""
    file = only_model(file for file in place.glob("*.gguf") if file.is_file()) if place.is_dir() else place
    if file is None or file.suffix.lower() != ".gguf":
        return None
    return ReadMetadata.of(file, gguf_metadata(file))
