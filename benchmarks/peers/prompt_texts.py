"""Prompts as text, for servers that take no token ids."""

from collections.abc import Sequence
from pathlib import Path

from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer


class PromptTexts:
    """Stretches of a text that have as many tokens as a prompt; a few differ by one or two."""

    def __init__(self, model: Path, text: Path) -> None:
        """Reads a text with a model's tokenizer."""
        self._tokenizer = load_tokenizer(model)
        self._ids = self._tokenizer.encode(text.read_text(encoding="utf-8"), add_special=False)

    def of(self, prompt: Sequence[int]) -> str:
        """The text in the place of a prompt; where it begins follows from the prompt's ids."""
        count = max(1, len(prompt) - 1)  # the server adds a BOS
        start = 7919 * sum(prompt) % (len(self._ids) - count)
        return self._tokenizer.decode(self._ids[start : start + count])
