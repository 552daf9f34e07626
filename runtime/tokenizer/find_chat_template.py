"""Find the chat template that belongs to a model."""

from collections.abc import Sequence
from pathlib import Path

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import ChatTemplateError, TokenizerError
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.hub_files import read_chat_template, read_template_file
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.runtime.weights import gguf_metadata
from mlxr.runtime.weights.gguf_parts import only_model

_MOST_CHARACTERS = 1 << 20


def load_chat_template(places: Sequence[Path], tokenizer: Tokenizer, file: str | Path | None = None) -> ChatTemplate:
    """The chat template of a model.

    Args:
        places: where it may be, first ones first: .gguf files, which may hold one; folders; other files, for what is
            in their folder.
        tokenizer: the model's; it names the special tokens that a template may write.
        file: a Jinja2 file to be used instead.

    Raises:
        ChatTemplateError: there is none.
        TokenizerError: a file that should hold it cannot be read.
    """
    tokens = {
        name: tokenizer.token_text(token_id)
        for name, token_id in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id))
        if token_id is not None
    }
    if file is not None:
        return ChatTemplate(read_template_file(Path(file)), str(file), tokens)
    for place in places:
        found = _of_gguf(place) or read_chat_template(place if place.is_dir() else place.parent)
        if found is not None:
            return ChatTemplate(*found, tokens)
    raise ChatTemplateError(
        f"{places[-1]}: the model comes without a chat template (none in a .gguf file, and no chat_template.jinja or "
        "tokenizer_config.json with one); it may not be made for conversations. Give one with --template FILE"
    )


def _of_gguf(place: Path) -> tuple[str, str] | None:
    """The template in a GGUF file, or in the only GGUF model of a folder, and where it is."""
    if place.is_dir():
        file = only_model(file for file in place.glob("*.gguf") if file.is_file())
        if file is None:
            return None
        place = file
    if place.suffix.lower() != ".gguf":
        return None
    text = gguf_metadata(place).get(file_keys.CHAT_TEMPLATE)
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
        raise TokenizerError(
            f"{place}: `{file_keys.CHAT_TEMPLATE}` is {text!r:.60}, expected text of at most {_MOST_CHARACTERS} "
            "characters"
        )
    return text, str(place)
