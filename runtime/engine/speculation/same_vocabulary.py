"""Whether a draft model's tokens mean the same text as those of the model for which it guesses."""

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import RequestError
from mlxr.runtime.tokenizer.tokenizer import Tokenizer


def check_same_vocabulary(
    artifact: Artifact, tokenizer: Tokenizer | None, draft_artifact: Artifact, draft_tokenizer: Tokenizer | None
) -> None:
    """Compares the vocabularies of a model and its draft model token by token; without tokenizers only their sizes.

    Either model may have rows for more ids than the tokenizer: they have no text.

    Raises:
        RequestError: a token means another text in the draft model, or only one of the models has a tokenizer.
    """
    name, draft_name = artifact.spec.name, draft_artifact.spec.name
    size, draft_size = artifact.plan.vocab_size, draft_artifact.plan.vocab_size
    what = f"{draft_name} cannot be the draft model of {name}"
    fix = "take a smaller model of the same family, or prompt lookup, which needs no model"
    if tokenizer is None and draft_tokenizer is None:
        if size != draft_size:
            raise RequestError(f"{what}: its vocabulary has {draft_size} tokens, not {size}: {fix}")
        return
    if tokenizer is None or draft_tokenizer is None:
        lacking = name if tokenizer is None else draft_name
        raise RequestError(f"{what}: {lacking} has no tokenizer, so nothing tells whether their tokens are the same")
    used = min(size, tokenizer.vocab_size)
    draft_used = min(draft_size, draft_tokenizer.vocab_size)
    if draft_used < used:
        raise RequestError(f"{what}: its vocabulary has {draft_used} tokens, not {used}: {fix}")
    for token in range(used):
        text, draft_text = tokenizer.token_text(token), draft_tokenizer.token_text(token)
        if text != draft_text:
            raise RequestError(f"{what}: token {token} is {draft_text!r} in it, and {text!r} in {name}: {fix}")
