"""A sequence that stays in the arena between generations, so that the next one reads only what is new.

A conversation grows at its end: each prompt begins with the last one and its answer. What both have in common is in
the arena already.
"""

from collections.abc import Sequence

from mlxr.runtime.cache.pager import Pager


class KeptSequence:
    """At most one sequence of the arena, with its tokens. Not for two generations at once.

    Invariant: between generations, the pager's sequence is as long as `tokens`, whose K and V are in its blocks.
    """

    def __init__(self, pager: Pager) -> None:
        """Holds nothing yet."""
        self.pager = pager
        self._seq_id: int | None = None
        self._in_use = False
        self.tokens: list[int] = []

    def __del__(self) -> None:
        if not self._in_use:
            self.clear()

    @property
    def num_held(self) -> int:
        """Sequences of the arena that it holds: 0 or 1."""
        return int(self._seq_id is not None)

    @property
    def in_use(self) -> bool:
        """Whether a generation has it now."""
        return self._in_use

    def begin(self, prompt: Sequence[int]) -> tuple[int, int]:
        """Hands the sequence to a generation, cut to what it has in common with the prompt.

        At least the prompt's last token is left to be read: its logits are wanted.

        Returns:
            The sequence's id, and how many of the prompt's tokens are in the arena.

        Raises:
            ArenaError: there is no sequence yet, and `max_sequences` are held already.
        """
        assert not self._in_use, "one generation at a time"
        shared = 0
        for ours, theirs in zip(self.tokens, prompt[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        if self._seq_id is None:
            self._seq_id = self.pager.add_sequence()
        self.pager.truncate(self._seq_id, shared)
        self.tokens = list(prompt[:shared])
        self._in_use = True
        return self._seq_id, shared

    def end(self, tokens: Sequence[int]) -> None:
        """Takes the sequence back, with the tokens that the arena surely holds."""
        assert self._in_use and self._seq_id is not None, "end follows begin"
        self.pager.truncate(self._seq_id, len(tokens))
        self.tokens = list(tokens)
        self._in_use = False

    def clear(self) -> None:
        """Forgets the sequence and gives its blocks back."""
        assert not self._in_use, "a generation has it"
        if self._seq_id is not None:
            self.pager.free(self._seq_id)
        self._seq_id, self.tokens = None, []
