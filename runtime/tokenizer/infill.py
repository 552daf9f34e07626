"""Prompts that ask a model for what stands between two texts ("fill in the middle"), by its own control tokens.

Sources: the model cards of Qwen-Coder, StarCoder 2, DeepSeek-Coder, CodeGemma and Seed-Coder, mistral-common for
Codestral; how other files stand before, and how long texts are cut: /infill of llama.cpp's server.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mlxr.compiler.errors import RequestError
from mlxr.runtime.tokenizer.tokenizer import Tokenizer, encode_inside

_FILES = ("<|file_sep|>", "<file_sep>")
_REPOSITORIES = ("<|repo_name|>", "<|fim_repo|>", "<fim-repo>", "<REPO>")
_ENDS = (
    *_FILES,
    *_REPOSITORIES,
    "<|file_separator|>",
    "▁<EOT>",
    "<EOT>",
    "<|endoftext|>",
    "<|fim_pad|>",
    "<fim_pad>",
    "<fim-pad>",
)
"""What a model writes where the middle is over, besides the names of a form."""
_CHARACTERS = 16
"""Of a text for each token that there is room for: what is further away is not worth the time to encode it."""


class _Form(NamedTuple):
    """How a family writes a prompt: names of control tokens. Without one for the middle, it follows the prefix."""

    prefix: str
    suffix: str
    middle: str = ""
    begins_with_suffix: bool = False

    @property
    def names(self) -> set[str]:
        return {self.prefix, self.suffix, self.middle} - {""}


_FORMS = (
    _Form("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen-Coder, CodeGemma, Granite 4
    _Form("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    _Form("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    _Form("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    _Form("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", begins_with_suffix=True),  # Seed-Coder
    _Form("[PREFIX]", "[SUFFIX]", begins_with_suffix=True),  # Codestral
    _Form("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    _Form("<PRE>", "<SUF>", "<MID>"),
    _Form("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    _Form("<|prefix|>", "<|suffix|>", "<|middle|>"),  # Falcon-H1-Tiny-Coder
)
_NAMES = tuple(sorted({*_ENDS}.union(*(form.names for form in _FORMS))))


class Gap(NamedTuple):
    """What is asked: the text between two others.

    Attributes:
        prefix: the text before it.
        suffix: the text after it.
        files: other files that help, each a name and a text; the last ones are the most important.
    """

    prefix: str
    suffix: str
    files: Sequence[tuple[str, str]] = ()


class InfillPrompt(NamedTuple):
    """A prompt whose answer is the text of a gap.

    Attributes:
        ids: the tokens of the prompt.
        ends: tokens that end the answer, besides those that end any.
        is_cut: whether something was left out, since it was too long.
    """

    ids: list[int]
    ends: tuple[int, ...]
    is_cut: bool


def infill_prompt(tokenizer: Tokenizer, gap: Gap, room: int | None = None) -> InfillPrompt:
    """The prompt that asks for the text of a gap.

    Names of control tokens in the texts are ordinary text, but for tokens of which the tokenizer's file says that they
    are found in any text.

    Args:
        tokenizer: of the model.
        gap: what is asked.
        room: most tokens of the prompt: the beginning of the prefix, the end of the suffix and the first files are left
            out for it; None: any number.

    Raises:
        RequestError: the vocabulary has no control tokens for it.
        TokenizerError: a text cannot be encoded.
    """
    control = _known_names(tokenizer)
    form = _form_of(control)
    if form is None:
        raise RequestError(
            "the model cannot fill in the middle: its vocabulary has no control tokens for a prefix and a suffix; take "
            "a model for code that has them, such as Qwen2.5-Coder, or leave out the suffix"
        )
    before = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    middle = [control[form.middle]] if form.middle else []
    most = None if room is None else max(0, room - len(before) - len(middle) - 2)
    prefix, suffix, is_cut = _texts(tokenizer, gap, most)
    files: list[int] = []
    if gap.files:
        left = None if most is None else most - len(prefix) - len(suffix)
        files, are_cut = _files(tokenizer, control, gap.files, left)
        is_cut = is_cut or are_cut
    parts = [[control[form.prefix], *prefix], [control[form.suffix], *suffix]]
    if form.begins_with_suffix:
        parts.reverse()
    return InfillPrompt([*before, *files, *parts[0], *parts[1], *middle], tuple(sorted(control.values())), is_cut)


def fills_gaps(tokenizer: Tokenizer) -> bool:
    """Whether its model can be asked for the text of a gap."""
    return _form_of(_known_names(tokenizer)) is not None


def _known_names(tokenizer: Tokenizer) -> dict[str, int]:
    """The names that a vocabulary has a token for, with its id. Some files say of these tokens that they are text."""
    known = {}
    for name in _NAMES:  # few and short: no cache is worth it
        ids = tokenizer.encode(name, add_special=False, parse_special=True)
        if len(ids) == 1 and tokenizer.token_text(ids[0]) == name:
            known[name] = ids[0]
    return known


def _form_of(control: Mapping[str, int]) -> _Form | None:
    return next((form for form in _FORMS if form.names <= control.keys()), None)


def _texts(tokenizer: Tokenizer, gap: Gap, most: int | None) -> tuple[list[int], list[int], bool]:
    """Tokens of prefix and suffix, as many as there is room for: three of the prefix for one of a suffix that is long.

    A prefix is encoded as the beginning of a text, and a suffix as its inside: so these models were trained.
    """
    before, after = gap.prefix, gap.suffix
    if most is not None:
        before, after = before[max(0, len(before) - most * _CHARACTERS) :], after[: most * _CHARACTERS]
    prefix = tokenizer.encode(before, add_special=False)
    suffix = encode_inside(tokenizer, after, parse_special=False)
    of_prefix, of_suffix = len(prefix), len(suffix)
    if most is not None and of_prefix + of_suffix > most:
        of_prefix = min(of_prefix, max(most - of_suffix, most * 3 // 4))
        of_suffix = most - of_prefix
    is_cut = (of_prefix, of_suffix, before, after) != (len(prefix), len(suffix), gap.prefix, gap.suffix)
    return prefix[len(prefix) - of_prefix :], suffix[:of_suffix], is_cut


def _files(
    tokenizer: Tokenizer, control: Mapping[str, int], files: Sequence[tuple[str, str]], most: int | None
) -> tuple[list[int], bool]:
    """Tokens of other files and of what stands before the file with the gap: of too many, the last ones, and True."""
    file = next((control[name] for name in _FILES if name in control), None)
    repository = next((control[name] for name in _REPOSITORIES if name in control), None)
    parts: list[list[int]] = []  # the last one first

    def add(text: str, *before: int) -> None:
        kept = text if most is None else text[max(0, len(text) - (most + 1) * _CHARACTERS) :]
        parts.append([*before, *encode_inside(tokenizer, kept, parse_special=False)])

    if file is not None:
        add("filename\n", file)
    for name, text in reversed(files):
        if most is not None and sum(map(len, parts)) > most:
            break
        add(text)
        if file is None:
            add("\n\n--- snippet ---\n\n")
        else:
            add(f"{name}\n", file)
    if file is not None and repository is not None:
        add("myproject\n", repository)
    ids = [token for part in reversed(parts) for token in part]
    return (ids, False) if most is None or len(ids) <= most else (ids[len(ids) - most :], True)
