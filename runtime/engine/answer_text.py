"""The text of one answer: tokens are decoded as they come, and what may begin a stop string is held back."""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.stop_strings import StopStrings
from mlxr.runtime.tokenizer.stream_decoder import StreamDecoder
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

_TAIL = 32
"""Tokens of the prompt that the decoder sees. It remembers at most three bytes, and whether the text has begun."""


class AnswerText:
    """Decodes the tokens of an answer, so that its text continues that of the prompt.

    Attributes:
        can_stop: whether there are stop strings.
    """

    __slots__ = ("_decoder", "_num_decodable", "_prompt", "_ready", "_stop", "_tokenizer", "can_stop")

    def __init__(self, tokenizer: Tokenizer | None, prompt: Sequence[int], sampling: Sampling) -> None:
        """Makes no decoder yet: `prepare` does, or the first token.

        Args:
            tokenizer: None: the answer has no text.
            prompt: its ids.
            sampling: has the texts that end the answer.
        """
        self._tokenizer, self._prompt = tokenizer, prompt[-_TAIL:]
        self._stop = StopStrings(sampling.stop, sampling.include_stop) if sampling.stop else None
        self.can_stop = self._stop is not None
        self._num_decodable = tokenizer.vocab_size if tokenizer else 0
        self._decoder: StreamDecoder | None = None  # once it has a token of the answer
        self._ready: StreamDecoder | None = None

    def push(self, token: int, may_stop: bool = True) -> tuple[str, bool]:
        """The text that becomes certain with a token, and whether a stop string ends the answer.

        Args:
            token: its id.
            may_stop: whether stop strings count yet.
        """
        text = self.decode(token)
        if self._stop is None or not may_stop:
            return text, False
        if self._tokenizer is not None and token in self._tokenizer.control_ids:
            # What comes before a control token is told with it at the latest: the token may mean something to readers.
            return self._stop.flush() + text, False
        return self._stop.push(text)

    def decode(self, token: int) -> str:
        """`push` for an answer without stop strings: all text is certain."""
        if token >= self._num_decodable:  # a model's vocabulary may be larger than its tokenizer's
            return ""
        return (self._decoder or self._begin()).push(token)

    @property
    def table(self) -> list[str | None] | None:
        """See `StreamDecoder.table`; None also where a text has not begun."""
        return None if self._decoder is None else self._decoder.table

    def learn(self, tokens: Iterable[int]) -> None:
        """Has the table have texts of more tokens."""
        if self._decoder is not None:
            self._decoder.learn([token for token in tokens if token < self._num_decodable])

    def ahead(self, tokens: Sequence[int]) -> tuple[list[str], StreamDecoder | None, StreamDecoder | None]:
        """What `decode` will return for the next tokens; it changes nothing.

        Returns:
            The texts, then what decodes now, if the text has begun, and what goes on after them: for `go_on`.
        """
        if self._num_decodable == 0:
            return [""] * len(tokens), None, None
        after = (self._decoder or self._ready or self._made()).copy()
        texts = [after.push(token) if token < self._num_decodable else "" for token in tokens]
        return texts, self._decoder, after

    def go_on(self, decoder: StreamDecoder | None) -> None:
        """Goes on with a decoder of `ahead`."""
        self._decoder = decoder

    @property
    def matched(self) -> str | None:
        """The stop string that has ended the answer; None: none has."""
        return None if self._stop is None else self._stop.matched

    def flush(self) -> str:
        """The text that is left at the end of an answer."""
        text = self._decoder.flush() if self._decoder else ""
        if self._stop is None:
            return text
        certain, stopped = self._stop.push(text)
        return certain if stopped else certain + self._stop.flush()

    def prepare(self) -> None:
        """Lets the first token wait for no decoder. If one cannot be made, `decode` will say so."""
        if self._decoder is None and self._ready is None and self._num_decodable:
            with suppress(Exception):
                self._ready = self._made()

    def _begin(self) -> StreamDecoder:
        decoder = self._decoder = self._ready or self._made()
        return decoder

    def _made(self) -> StreamDecoder:
        """The decoder, which has read the end of the prompt. That takes longer than all else that a token needs."""
        assert self._tokenizer is not None, "only a tokenizer has decodable ids"
        decoder = self._tokenizer.stream_decoder()
        for token in self._prompt:
            if token < self._num_decodable:
                decoder.push(token)
        return decoder
