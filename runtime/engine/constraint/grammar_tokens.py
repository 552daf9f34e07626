"""The model's tokens as grammars name them."""

from collections.abc import Collection

from mlxr.runtime.tokenizer.tokenizer import Tokenizer


class GrammarTokens:
    """Finds tokens for grammars."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> None:
        """Keeps the vocabulary.

        Args:
            tokenizer: the model's.
            vocab_size: how many logits the model has.
            eos_ids: the ids that end an answer.
        """
        self._tokenizer, self._eos_ids = tokenizer, frozenset(eos_ids)
        self._size = min(vocab_size, tokenizer.vocab_size)

    def id_of(self, name: str) -> int | None:
        """The id of the token whose text is `name`, a control token or another; None if it is not one token."""
        if name in self._tokenizer.control_tokens:
            return self._tokenizer.control_tokens[name]
        ids = self._tokenizer.encode(name, add_special=False)
        return ids[0] if len(ids) == 1 and self._tokenizer.bytes_of(ids[0]) == name.encode("utf-8") else None

    def others(self, token_id: int) -> str:
        """Any token but this one and those that end an answer or have neither text nor a meaning, as Lark has it."""
        ranges: list[list[int]] = []
        for other in range(self._size):
            if other == token_id or other in self._eos_ids or not self._is_said(other):
                continue
            if ranges and ranges[-1][1] == other - 1:
                ranges[-1][1] = other
            else:
                ranges.append([other, other])
        return f"<[{','.join(f'{first}-{last}' for first, last in ranges)}]>"

    def _is_said(self, token_id: int) -> bool:
        return self._tokenizer.is_control(token_id) or bool(self._tokenizer.bytes_of(token_id))
