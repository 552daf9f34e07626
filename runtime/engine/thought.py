"""A limit on what a model thinks before it answers: where it is reached, the tokens that end a thought are forced.

Forced tokens are not sampled. They become part of the answer as those do for which a constraint leaves no choice, and
the next step computes all of them; only where a step samples the first one already, or log probabilities are asked for,
is a token forced by a mask.
"""

import numpy as np

from mlxr.runtime.engine.constraint.constraint import Mask
from mlxr.runtime.engine.sampling.options import ThoughtLimit
from mlxr.runtime.tokenizer.tokenizer import Tokenizer, encode_inside

_SPACE = b" \t\r\n"
_CONTROL = b"\xff"
"""Comes before the name of a control token, so that text which only spells one is not taken for it."""


class Thought:
    """Follows the tokens of one answer.

    Attributes:
        forced: the tokens that come next, whatever the model would sample; often none.
        is_over: whether no thought can come any more, so that nobody need follow the answer.
    """

    def __init__(self, limit: ThoughtLimit, tokenizer: Tokenizer) -> None:
        """Starts before an answer."""
        self._limit, self._tokenizer = limit, tokenizer
        self._start, (self._end, num_ends) = self._spelled(limit.opening.strip())[0], self._spelled(limit.end_marker)
        self._has_parts = num_ends > 1  # of the end marker, of which a part may have come
        self._left = limit.tokens
        self._is_open = limit.is_open
        self._has_answer = False  # whether text has come that is no thought
        self._num_closed = 0
        self._is_last = False  # whether what is forced begins the answer itself
        self._text = b""  # of the thought, or of what may open one
        self.forced: list[int] = []
        self.is_over = False
        self._force_if_due()

    def is_due(self, tokens: int) -> bool:
        """Whether others may be forced after so many further tokens, or one of them is forced itself."""
        return bool(self.forced) or self._left <= tokens

    def mask(self, num_words: int) -> Mask:
        """The mask that allows only the next forced token: [num_words], int32; see `Constraint`."""
        bits = np.zeros(num_words, np.uint32)
        bits[self.forced[0] // 32] = 1 << (self.forced[0] % 32)
        return bits.view(np.int32)

    def accept(self, token: int) -> None:
        """Takes the next token of the answer."""
        is_forced = bool(self.forced)
        if is_forced:
            self.forced = self.forced[1:]
        self._text += self._bytes_of(token)
        if self._is_open:
            self._follow_thought(is_forced)
        else:
            self._look_for_thought()
        self._force_if_due()

    def _follow_thought(self, is_forced: bool) -> None:
        if self._end in self._text:
            self._is_open, self._num_closed = False, self._num_closed + 1
            self._text = self._text.partition(self._end)[2]
            self.is_over = not self.forced and (self._is_last or not self._limit.reopens)
            return
        if not is_forced:
            self._left -= 1
        if len(self._text) > 8 * len(self._end) + 64:
            self._text = b"." + self._text[-4 * len(self._end) - 16 :]  # it is no empty thought

    def _look_for_thought(self) -> None:
        if self._num_closed and (self._is_last or not self._limit.reopens):
            self.is_over = not self.forced
            return
        text = self._text.lstrip(_SPACE)
        if self._limit.reopens and self._start in text:
            self._open(text.partition(self._start)[2])
        elif not self._has_answer and text.startswith(self._start):
            self._open(text[len(self._start) :])
        elif not self._has_answer and not self._start.startswith(text):
            self._has_answer = True
            self.is_over = not self._limit.reopens
        if len(self._text) > 8 * len(self._start) + 64:
            self._text = self._text[-4 * len(self._start) :]

    def _open(self, text: bytes) -> None:
        self._is_open, self._has_answer, self._text = True, True, text

    def _force_if_due(self) -> None:
        """Forces the end of a thought that has no tokens left, once its last character is whole."""
        if not self._is_open or self._left > 0 or self.forced or not _is_whole(self._text):
            return
        limit = self._limit
        self._is_last = not limit.final_closing or self._num_closed > 0
        closing = limit.final_closing if limit.final_closing and self._is_last else limit.closing
        if not self._text and not (limit.is_open and not self._num_closed):
            opening = limit.opening
            closing = opening[len(opening.rstrip()) :] + closing  # the model has written the bare marker
        elif begun := self._begun_end():
            closing = closing[closing.index(limit.end_marker) + begun :]
        elif self._text.endswith(b"\n"):
            closing = closing.lstrip("\n")
        self.forced = encode_inside(self._tokenizer, closing)

    def _begun_end(self) -> int:
        """How many characters of the end marker the model has written, if that is more than one token."""
        for size in range(len(self._end) - 1, 0, -1) if self._has_parts else ():
            if self._text.endswith(self._end[:size]):
                return len(self._end[:size].replace(_CONTROL, b"").decode())
        return 0

    def _spelled(self, marker: str) -> tuple[bytes, int]:
        """A marker as it comes in answers, and how many tokens it has."""
        tokens = encode_inside(self._tokenizer, marker)
        spelled = b"".join(map(self._bytes_of, tokens))
        is_exact = spelled.replace(_CONTROL, b"") == marker.encode()  # some tokenizers normalise texts
        return spelled if is_exact else marker.encode(), len(tokens)

    def _bytes_of(self, token: int) -> bytes:
        if token >= self._tokenizer.vocab_size:
            return b""
        if token in self._tokenizer.control_ids:
            return _CONTROL + self._tokenizer.token_text(token).encode()
        return self._tokenizer.bytes_of(token)


def _is_whole(text: bytes) -> bool:
    """Whether no character of UTF-8 is cut at the end of a text."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80:
            return True
        if byte >= 0xC0:  # the first one of a character, of 2, 3 or 4 bytes
            return back >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return True
