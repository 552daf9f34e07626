"""Refuses prompts that leave no room for an answer; very long ones before they are encoded."""

from mlxr.compiler.errors import PromptTooLongError
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

_QUICKLY_ENCODED = 1 << 16
"""A text of up to so many characters is encoded without an estimate of its tokens."""


def too_long(what: str, context: int, fix: str = "shorten the prompt") -> PromptTooLongError:
    """The error for a prompt that is too long.

    Args:
        what: says how long it is.
        context: most tokens of a sequence.
        fix: what helps besides a longer context.
    """
    return PromptTooLongError(
        f"{what}; the context is {context}, and at least one token must be left for the answer: {fix}, or load the "
        "model with a longer context (--context N; in Python changes=mlxr.Changes(context=N))"
    )


def check_length(text: str, tokenizer: Tokenizer, context: int) -> None:
    """Refuses a text that certainly has too many tokens, before time and memory are spent on encoding it.

    Raises:
        PromptTooLongError: it has too many.
    """
    if len(text) > _QUICKLY_ENCODED and (least := tokenizer.least_tokens(text)) >= context:
        raise too_long(f"the prompt has {len(text)} characters, so {least} tokens or more", context)
