"""Refuses prompts that leave no room for an answer; very long ones before they are encoded."""

from mlxr.runtime.engine.errors import PromptTooLongError
from mlxr.runtime.memory.fitting_arena import ContextLimit
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

_QUICKLY_ENCODED = 1 << 16
"""A text of up to so many characters is encoded without an estimate of its tokens."""


def too_long(
    what: str, limit: ContextLimit, fix: str = "shorten the prompt", *, answered: bool = True
) -> PromptTooLongError:
    """The error for a prompt that is too long.

    Args:
        what: says how long it is.
        limit: of the context.
        fix: what helps besides a longer context.
        answered: whether there will be an answer.
    """
    needs = ", and at least one token must be left for the answer" if answered else ""
    cut = f" of the model's own {limit.own} ({limit.why})" if limit.is_cut else ""
    remedy = f", or {limit.remedy}" if limit.remedy else ""
    return PromptTooLongError(f"{what}; the context is {limit.tokens}{cut}{needs}: {fix}{remedy}")


def check_length(
    text: str, tokenizer: Tokenizer, limit: ContextLimit, answered: bool = True, fix: str = "shorten the prompt"
) -> None:
    """Refuses a text that certainly has too many tokens, before time and memory are spent on encoding it.

    Args:
        text: the prompt.
        tokenizer: of the model.
        limit: of the context.
        answered: whether there will be an answer, for which a token must be left.
        fix: what helps besides a longer context.

    Raises:
        PromptTooLongError: it has too many.
    """
    if len(text) > _QUICKLY_ENCODED and (least := tokenizer.least_tokens(text)) >= limit.tokens + (not answered):
        raise too_long(
            f"the prompt has {len(text)} characters, so {least} tokens or more", limit, fix, answered=answered
        )
