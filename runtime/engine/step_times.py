"""How long steps take, measured while they run, and how many tokens of prompts a step may therefore have.

A step in which answers decode may also read a part of a prompt. It then takes longer, and every answer waits for it.
The less it reads, the longer the prompt takes, for each step costs what it costs without the prompt, too. So there are
two limits to the wait, in steps without a prompt: `LONG_DELAY` for the many steps of a long prompt, and `SHORT_DELAY`
for the few of one that has at most `SHORT_PROMPT` tokens to be read, whose first token then comes nearly as soon as
alone.

Of the newest measurements the least one counts: what else the machine does makes steps longer, and reading less would
not make them shorter. But a step that is read late makes the next one seem shorter, by any time: of how many steps a
launch is, the middle one says.
"""

from collections import deque

LONG_DELAY = 2.0
SHORT_DELAY = 12.0
SHORT_PROMPT = 2048
_AIM = 0.8
"""Which share of the delay is aimed at, because the time of a step varies."""
_FIRST_TOKENS = 32
"""Tokens of a prompt in the first step beside decoding sequences, when nothing has been measured."""
_LEAST_TOKENS = 4
"""Tokens that a step may read in any case, so that no prompt waits forever."""
_NEWEST, _FEWEST = 6, 3
"""Measurements that count, and how many have a middle one."""


class StepTimes:
    """Seconds of a decode step, for each number of sequences, and of a token that is read beside decoding sequences."""

    def __init__(self) -> None:
        self._decode: dict[int, deque[float]] = {}
        self._token: deque[float] = deque(maxlen=_NEWEST)

    def measured(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """Takes the time of a step.

        Args:
            decoding: sequences with one token.
            prompt_tokens: all other tokens.
            seconds: time of the step.
        """
        if decoding and not prompt_tokens:
            self._decode.setdefault(_size(decoding), deque(maxlen=_NEWEST)).append(seconds)
        elif decoding and (step := self.decode_seconds(decoding)) is not None:
            self._token.append(max(seconds - step, seconds / 20) / prompt_tokens)

    def decode_seconds(self, decoding: int) -> float | None:
        """Seconds of a decode step of so many sequences; None if no step was like it."""
        size = _size(decoding)
        if size not in self._decode:
            size = max((other for other in self._decode if other < size), default=-1)
        return min(self._decode[size]) if size in self._decode else None

    def launch_seconds(self, decoding: int) -> float | None:
        """The same where it is certain, for a launch of several: not shorter than they are, and not that of fewer."""
        newest = self._decode.get(_size(decoding), ())
        return sorted(newest)[len(newest) // 2] if len(newest) >= _FEWEST else None

    def prompt_tokens(self, decoding: int, most: int, delay: float = LONG_DELAY) -> int:
        """Tokens of prompts that a step may read beside decoding sequences.

        Args:
            decoding: sequences that decode in this step.
            most: what the plan allows.
            delay: how much longer it may take than without them, in steps without them.
        """
        if not decoding:
            return most
        step = self.decode_seconds(decoding)
        if step is None or not self._token:
            return min(most, _FIRST_TOKENS)
        return min(most, max(_LEAST_TOKENS, int(_AIM * delay * step / min(self._token))))


def _size(sequences: int) -> int:
    """Steps of so many sequences are measured together: 1, 2, 3-4, 5-8, 9-16, ..."""
    return (sequences - 1).bit_length()
