"""A prefix cache entry: a sequence that stays in the arena between generations.

A conversation grows at its end: each prompt begins with the previous prompt and its answer. The entry keeps the keys
and values of these tokens, so that the next generation computes only the tokens after them.
"""

from collections.abc import Sequence

from mlxr.runtime.cache.pager import Pager


class PrefixCacheEntry:
    """At most one sequence of the arena, and its tokens. One generation at a time may use it.

    Invariant: between generations, the pager's sequence is as long as `tokens`, whose K and V are in its blocks.
    """

    def __init__(self, pager: Pager) -> None:
        """Makes an empty entry; it takes a sequence of the pager when it is first used."""
        self.pager = pager
        self._seq_id: int | None = None
        self._in_use = False
        self.tokens: list[int] = []

    def __del__(self) -> None:
        if not self._in_use:
            self.clear()

    @property
    def num_sequences(self) -> int:
        """Sequences of the arena that the entry occupies: 0 or 1."""
        return int(self._seq_id is not None)

    @property
    def in_use(self) -> bool:
        """Whether a generation is using the entry now."""
        return self._in_use

    def begin(self, prompt: Sequence[int]) -> tuple[int, int]:
        """Gives the sequence to a generation, cut to the tokens that it has in common with the prompt.

        The last token of the prompt is always computed again, because its logits are wanted.

        Returns:
            The sequence's id, and how many tokens of the prompt are in the arena.

        Raises:
            ArenaError: the entry has no sequence yet, and `max_sequences` are in use.
        """
        assert not self._in_use, "one generation at a time"
        shared = 0
        for cached, wanted in zip(self.tokens, prompt[:-1], strict=False):
            if cached != wanted:
                break
            shared += 1
        if self._seq_id is None:
            self._seq_id = self.pager.add_sequence()
        self.pager.truncate(self._seq_id, shared)
        self.tokens = list(prompt[:shared])
        self._in_use = True
        return self._seq_id, shared

    def end(self, tokens: Sequence[int]) -> None:
        """Takes the sequence back from a generation.

        Args:
            tokens: those whose keys and values are certainly in the arena.
        """
        assert self._in_use and self._seq_id is not None, "end follows begin"
        self.pager.truncate(self._seq_id, len(tokens))
        self.tokens = list(tokens)
        self._in_use = False

    def clear(self) -> None:
        """Forgets the tokens and frees the sequence's blocks."""
        assert not self._in_use, "a generation is using the entry"
        if self._seq_id is not None:
            self.pager.free(self._seq_id)
        self._seq_id, self.tokens = None, []
