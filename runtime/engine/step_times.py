"""How long steps take, measured while they run, and how many tokens of prompts a step may therefore have.

A step in which answers decode may also read a part of a prompt. It then takes longer, and every answer waits for it: by
at most `MOST_DELAY` times what its step takes without the prompt.
"""

MOST_DELAY = 2.0
_WEIGHT = 0.2
"""Weight of the newest measurement in a moving average."""


class StepTimes:
    """Moving averages: seconds of a decode step, for each number of sequences, and of a prompt's token."""

    def __init__(self) -> None:
        self._decode: dict[int, float] = {}
        self._token: float | None = None

    def measured(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """Takes the time of a step.

        Args:
            decoding: sequences with one token.
            prompt_tokens: all other tokens.
            seconds: time of the step.
        """
        if not prompt_tokens:
            size = _size(decoding)
            self._decode[size] = _average(self._decode.get(size), seconds)
        else:
            rest = seconds - (self.decode_seconds(decoding) or 0.0 if decoding else 0.0)
            self._token = _average(self._token, max(rest, seconds / 20) / prompt_tokens)

    def decode_seconds(self, decoding: int) -> float | None:
        """Seconds of a decode step of so many sequences; None if no step was like it."""
        size = _size(decoding)
        if size in self._decode:
            return self._decode[size]
        smaller = [other for other in self._decode if other < size]
        return self._decode[max(smaller)] if smaller else None

    def seconds_of(self, prompt_tokens: int) -> float | None:
        """Seconds that it takes to read tokens of a prompt; None if none has been read."""
        return None if self._token is None else self._token * prompt_tokens

    def prompt_tokens(self, decoding: int, most: int, least: int) -> int:
        """Tokens of prompts that a step may read beside decoding sequences.

        Args:
            decoding: sequences that decode in this step.
            most: what the plan allows.
            least: what every step may read, so that prompts never wait forever.
        """
        if not decoding:
            return most
        step = self.decode_seconds(decoding)
        if step is None or self._token is None:
            return min(most, 4 * least)
        return max(min(most, least), min(most, int(MOST_DELAY * step / self._token)))


def _size(sequences: int) -> int:
    """Steps of so many sequences share an average: 1, 2, 3-4, 5-8, 9-16, ..."""
    return (sequences - 1).bit_length()


def _average(before: float | None, value: float) -> float:
    return value if before is None else before + _WEIGHT * (value - before)
