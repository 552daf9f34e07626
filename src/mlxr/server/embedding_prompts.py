"""The texts of a request for embeddings, checked, and as token ids."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.runtime.engine.errors import PromptTooLongError
from mlxr.runtime.engine.too_long import check_length, too_long
from mlxr.server.errors import ApiError, bad_field
from mlxr.server.pool.loaded_model import LoadedModel

Texts = Sequence[str | list[int]]


@dataclass(frozen=True)
class Prompts:
    """Token ids of texts.

    Attributes:
        ids: of each text.
        cut: the places of those that were too long and were cut.
    """

    ids: list[list[int]]
    cut: list[int]

    @property
    def num_tokens(self) -> int:
        """Of all texts."""
        return sum(map(len, self.ids))


def check_texts(texts: Texts, most: int, field: str = "input", *, is_list: bool = True) -> None:
    """Refuses empty texts, and too many.

    Args:
        texts: texts, or their token ids.
        most: how many one request may have.
        field: where the request has them.
        is_list: whether that field is a list of them, and not a single one.

    Raises:
        ApiError: for either.
    """
    for i, text in enumerate(texts):
        if not text:
            raise bad_field(field, f"{field}{f'[{i}]' if is_list else ''} is empty: give some text")
    if len(texts) > most:
        raise bad_field(field, f"{field} has {len(texts)} texts; this server takes {most} at once: ask in parts")


def prompts_of(
    model: LoadedModel,
    texts: Texts,
    field: str = "input",
    *,
    add_special: bool = True,
    cuts: bool = False,
    fix: str = "shorten it",
) -> Prompts:
    """The token ids of each text. Slow for long ones.

    Args:
        model: of the tokenizer.
        texts: as `check_texts` lets them pass.
        field: where the request has them.
        add_special: whether to add the tokens that the model expects around a text.
        cuts: whether texts that are too long are cut; else they are refused.
        fix: what a client can do about a text that is too long.

    Raises:
        ApiError: a text is longer than the context.
        RequestError: an id is outside the vocabulary.
    """
    prompts: list[list[int]] = []
    cut: list[int] = []
    for i, text in enumerate(texts):
        try:
            if isinstance(text, str):
                tokenizer = model.engine.model.require_tokenizer()
                if cuts:
                    ids, was_cut = tokenizer.encode_start(text, model.context)
                    cut += [i] if was_cut else []
                else:
                    check_length(text, tokenizer, model.limit, answered=False, fix=fix)
                    ids = tokenizer.encode(text, add_special=add_special)
            else:
                ids = text
            if len(ids) > model.context:
                raise too_long(f"the text has {len(ids)} tokens", model.limit, fix, answered=False)
        except PromptTooLongError as error:
            where = f"{field}[{i}]: " if len(texts) > 1 else ""
            raise ApiError(400, f"{where}{error}", code="context_length_exceeded", param=field) from error
        prompts.append(model.engine.model.encode(ids))
    return Prompts(prompts, cut)
