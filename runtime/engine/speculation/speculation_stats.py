"""Counters of speculation."""

from dataclasses import dataclass


@dataclass
class SpeculationStats:
    """What became of drafts since the start.

    Attributes:
        proposed: draft tokens that were tried.
        accepted: those that the text went on with.
        parts: how often a text that speculates got its next token from a step, with a draft or without.
    """

    proposed: int = 0
    accepted: int = 0
    parts: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over proposed tokens; None before the first."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a step gives to a text, 1 without drafts; None before the first step."""
        return 1 + self.accepted / self.parts if self.parts else None

    def count(self, proposed: int, accepted: int) -> None:
        """Counts a text's part of a step."""
        self.proposed += proposed
        self.accepted += accepted
        self.parts += 1
