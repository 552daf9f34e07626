"""Stop strings: texts that end an answer. Text that may begin one is held back until it is known whether it does."""

from collections.abc import Sequence


class StopStrings:
    """Looks for stop strings in a text that comes in pieces.

    The answer ends at the stop string that is complete first; of several that are complete with the same character, at
    the one that begins first. None of its characters has been given out before, wherever the borders of pieces are.

    Attributes:
        matched: the stop string that has ended the answer; None: none has.
    """

    def __init__(self, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        """Takes the texts to look for.

        Args:
            stop: the texts; none may be empty.
            include_stop: whether the stop string itself belongs to the text.
        """
        assert all(stop), "an empty stop string ends every answer"
        self._stop, self._include_stop = tuple(stop), include_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Adds a piece of text.

        Returns:
            The text that is certain now and was not given out before, and whether a stop string has ended the answer.
        """
        assert self.matched is None, "the text has ended"
        if not self._stop:
            return text, False
        text = self._held + text
        ends = [(start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0]
        if ends:
            end, start = min(ends)
            self.matched, self._held = text[start:end], ""
            return text[: end if self._include_stop else start], True
        certain = len(text) - self._num_uncertain(text)
        self._held = text[certain:]
        return text[:certain], False

    def flush(self) -> str:
        """The text that was held back, when no more text comes; empty after a stop string."""
        text, self._held = self._held, ""
        return text

    def _num_uncertain(self, text: str) -> int:
        """How many characters at the end of a text may begin a stop string."""
        longest = min(max(map(len, self._stop)) - 1, len(text))
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stop)), 0)
