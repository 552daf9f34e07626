"""What a generation yields: an event for each token, and the completions that they add up to."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "context"]


@dataclass(frozen=True)
class Event:
    """One generated token.

    Attributes:
        index: which answer: prompt number x num_samples + sample number.
        text: the text that this token completes, as it continues the prompt; may be empty.
        finish_reason: `stop` at an end-of-sequence token, `length` at max_tokens, `context` where the context was full
            before that; None while the answer continues.
    """

    index: int
    token_id: int
    text: str
    finish_reason: FinishReason | None


@dataclass
class Completion:
    """One answer so far.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: how many of them a prefix cache entry had in the arena, so that they were not computed again.
    """

    prompt_tokens: int
    cached_tokens: int = field(default=0, kw_only=True)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
