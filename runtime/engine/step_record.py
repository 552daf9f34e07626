"""What a step computed, for people who watch."""

from typing import NamedTuple


class StepRecord(NamedTuple):
    """One step that has ended.

    Attributes:
        end: when, in seconds of `time.perf_counter`.
        seconds: its time.
        decoding: sequences with one token.
        prompt_tokens: tokens of the other sequences.
        drafted: draft tokens.
    """

    end: float
    seconds: float
    decoding: int
    prompt_tokens: int
    drafted: int
