"""The option that limits what a model thinks before it answers."""

from dataclasses import dataclass

from mlxr.compiler.errors import RequestError
from mlxr.runtime.argument_types import whole_number


@dataclass(frozen=True)
class ThoughtLimit:
    """How long a thought may be, and how it ends; see `mlxr.runtime.tokenizer.thinking_form`.

    Attributes:
        tokens: most tokens of all thoughts of an answer; 0: each is closed at once.
        opening: the text that begins one, white space included.
        closing: the text by which one is closed that has become too long.
        end_marker: the part of it by which the end of a thought is known.
        is_open: whether the prompt has begun one.
        reopens: whether another thought may begin after text of the answer; else only at its beginning.
        final_closing: the text by which thoughts after the first one are closed; empty: `closing` begins the answer
            itself, and no other thought comes.
    """

    tokens: int
    opening: str
    closing: str
    end_marker: str
    is_open: bool = False
    reopens: bool = False
    final_closing: str = ""

    def __post_init__(self) -> None:
        """Checks the number and the markers."""
        if whole_number("thought.tokens", self.tokens) < 0:
            raise RequestError(f"thought.tokens is {self.tokens}; expected 0 or more")
        if not self.opening.strip() or not self.end_marker or self.end_marker not in self.closing:
            raise RequestError("a limit on thoughts needs the text that begins them, and the one that ends them")
