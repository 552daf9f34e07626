"""How long a sequence of a loaded model may be, why, and what makes it longer."""

from dataclasses import dataclass

GOOD_CONTEXT = 8192
"""A context that memory decides is this or longer where that fits at all, and people are told where it is not."""
_LONGER = "load the model with a longer context (--context N; in Python changes=mlxr.Changes(context=N))"


@dataclass(frozen=True)
class ContextLimit:
    """The context of a loaded model.

    Attributes:
        tokens: most tokens of a sequence, prompt and answer.
        own: most that the model was compiled for.
        why: what decides the number, for people.
        remedy: what makes it longer, for people; empty: nothing does.
    """

    tokens: int
    own: int
    why: str = "as the model was compiled"
    remedy: str = _LONGER

    def __str__(self) -> str:
        """For people: `context 32,768 of the model's own 131,072: this machine has ...`."""
        if self.tokens < self.own:
            return f"context {self.tokens:,} of the model's own {self.own:,}: {self.why}"
        return f"context {self.tokens:,}, {self.why}"

    @property
    def is_cut(self) -> bool:
        """Whether it is less than the model has."""
        return self.tokens < self.own
