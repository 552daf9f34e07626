"""Refuses prompts that leave no room for an answer; very long ones before they are encoded."""

from mlxr.compiler.errors import PromptTooLongError
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

_QUICKLY_ENCODED = 1 << 16
"""A text of up to so many characters is encoded without an estimate of its tokens."""


def too_long(what: str, context: int, fix: str = "shorten the prompt", *, answered: bool = True) -> PromptTooLongError:
    """The error for a prompt that is too long.

    Args:
        what: says how long it is.
        context: most tokens of a sequence.
        fix: what helps besides a longer context.
        answered: whether there will be an answer.
    """
    needs = ", and at least one token must be left for the answer" if answered else ""
    return PromptTooLongError(
        f"{what}; the context is {context}{needs}: {fix}, or load the "
        "model with a longer context (--context N; in Python changes=mlxr.Changes(context=N))"
    )


def check_length(
    text: str, tokenizer: Tokenizer, context: int, answered: bool = True, fix: str = "shorten the prompt"
) -> None:
    """Refuses a text that certainly has too many tokens, before time and memory are spent on encoding it.

    Args:
        text: the prompt.
        tokenizer: of the model.
        context: most tokens of a sequence.
        answered: whether there will be an answer, for which a token must be left.
        fix: what helps besides a longer context.

    Raises:
        PromptTooLongError: it has too many.
    """
    if len(text) > _QUICKLY_ENCODED and (least := tokenizer.least_tokens(text)) >= context + (not answered):
        raise too_long(
            f"the prompt has {len(text)} characters, so {least} tokens or more", context, fix, answered=answered
        )
