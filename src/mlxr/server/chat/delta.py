"""What an answer consists of, piece by piece: each API writes these in its own form.

Pieces of one kind that follow each other continue one text.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A tool call begins.

    Attributes:
        index: counts the calls of an answer, from 0.
        id: names the call in the messages that follow.
        name: the tool's.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """The next characters of a call's arguments, which joined are JSON, unless the model wrote something else."""

    index: int
    text: str


Delta = ReasoningDelta | ContentDelta | ToolStart | ToolArguments
