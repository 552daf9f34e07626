"""A tokenizer as llguidance needs it: the bytes of each token, and the tokens of a text inside another."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from mlxr.runtime.tokenizer.token_bytes import UTF8_BYTES
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_BEFORE = ("\n", "a", ".", "0", " ")
"""Texts to encode another text after, where the tokenizer treats the start of a text in its own way."""


class Vocabulary:
    """What `LLTokenizer` asks of a tokenizer, by the names that it uses.

    A token without bytes is never allowed by a grammar. Control tokens have none, nor have those that end an answer,
    which llguidance allows where a grammar may end. So text that spells such a token never becomes that token.

    Attributes:
        tokens: the bytes of each token of the model: [vocab].
        eos_token_id: a token that ends an answer.
        bos_token_id: not needed.
        special_token_ids: none: grammars cannot name them.
        is_tokenizer_wrapper: what llguidance knows it by.
        greedy: llguidance's tokenizer of these tokens, once it exists: it spells what the tokenizer cannot.
    """

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> None:
        """Finds the bytes of every token.

        Args:
            tokenizer: the model's.
            vocab_size: how many logits the model has; perhaps fewer or more than the tokenizer has tokens.
            eos_ids: ids below `vocab_size` that end an answer; at least one.
        """
        self._tokenizer = tokenizer
        self.tokens = [b""] * vocab_size
        for token_id in range(min(vocab_size, tokenizer.vocab_size)):
            if token_id not in eos_ids and not tokenizer.is_control(token_id):
                data = tokenizer.bytes_of(token_id)
                # llguidance takes a byte that UTF-8 never has for a mark of its own.
                self.tokens[token_id] = data if UTF8_BYTES.issuperset(data) else b""
        self.eos_token_id = min(eos_ids)
        self.bos_token_id = None
        self.special_token_ids: list[int] = []
        self.greedy: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """The tokens that a text has inside another, by which llguidance forces it: they spell it exactly."""
        ids = self._encode(text)
        if self._spells(ids, text):
            return ids
        for before in _BEFORE:
            first, both = self._encode(before), self._encode(before + text)
            ids = both[len(first) :]
            if both[: len(first)] == first and self._spells(ids, text):
                return ids
        assert self.greedy is not None, "set before any grammar is compiled"
        return self.greedy.greedy_tokenize(text)  # such as text that the tokenizer normalises

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)

    def _spells(self, ids: list[int], text: str) -> bool:
        if any(token_id >= len(self.tokens) for token_id in ids):
            return False
        return b"".join([self.tokens[token_id] for token_id in ids]) == text.encode("utf-8")
