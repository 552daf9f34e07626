"""Prompts that ask for what stands between two texts."""

import pytest

from mlxr.compiler.errors import RequestError
from mlxr.runtime.tokenizer.infill import Gap, infill_prompt
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr.runtime.tokenizer.tokenizer import SpecialTokens, Tokenizer
from mlxr_tests.vocabularies import sentencepiece_model, single_bytes

QWEN = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
GAP = Gap("def f(x):\n", "\nf(1)\n")


def of(*names: str) -> Tokenizer:
    return LibraryTokenizer(single_bytes(*names), "here")


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    return "".join(tokenizer.token_text(i) if i >= 256 else tokenizer.bytes_of(i).decode("latin-1") for i in ids)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (QWEN, "<|fim_prefix|>{0}<|fim_suffix|>{1}<|fim_middle|>"),
        (("<fim_prefix>", "<fim_middle>", "<fim_suffix>"), "<fim_prefix>{0}<fim_suffix>{1}<fim_middle>"),
        (
            ("<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"),
            "<｜fim▁begin｜>{0}<｜fim▁hole｜>{1}<｜fim▁end｜>",
        ),
        (("[PREFIX]", "[MIDDLE]", "[SUFFIX]"), "[SUFFIX]{1}[PREFIX]{0}"),
        (
            ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>"),
            "<[fim-suffix]>{1}<[fim-prefix]>{0}<[fim-middle]>",
        ),
    ],
)
def test_a_prompt_is_written_as_its_family_was_trained(names: tuple[str, ...], expected: str) -> None:
    tokenizer = of(*names)
    prompt = infill_prompt(tokenizer, GAP)
    assert spelled(tokenizer, prompt.ids) == expected.format(*GAP[:2]) and not prompt.is_cut
    assert {tokenizer.token_text(i) for i in prompt.ends} == {*names} - {"[MIDDLE]"}


def test_names_in_texts_are_text_and_a_text_begins_with_its_token() -> None:
    library = single_bytes("<s>", *QWEN)
    tokenizer = LibraryTokenizer(library, "here", SpecialTokens(bos_id=256, add_bos=True))
    ids = infill_prompt(tokenizer, Gap("a<|fim_suffix|>", "<|fim_middle|><s>")).ids
    control = [tokenizer.token_text(i) for i in ids if i >= 256]
    assert control == ["<s>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"] and ids[0] == 256


def test_names_that_a_file_says_are_text_are_found() -> None:
    tokenizer = LibraryTokenizer(single_bytes(text_names=QWEN), "here")
    assert not tokenizer.control_ids
    assert spelled(tokenizer, infill_prompt(tokenizer, GAP).ids).startswith("<|fim_prefix|>def f(x)")


def test_long_texts_are_cut_where_they_are_far_away() -> None:
    tokenizer = of(*QWEN)
    files = [("a.py", "A" * 40), ("b.py", "B" * 40)]
    gap = Gap("0123456789" * 4, "abcdefghij" * 4, files)
    whole = infill_prompt(tokenizer, gap)
    assert spelled(tokenizer, whole.ids).startswith(f"<|repo_name|>myproject\n<|file_sep|>a.py\n{'A' * 40}<|file_sep|>")
    for room in range(len(whole.ids) + 2):
        prompt = infill_prompt(tokenizer, gap, room)
        assert len(prompt.ids) == min(len(whole.ids), max(room, 3)), "all the room is used"
        assert prompt.is_cut == (prompt.ids != whole.ids)
        if room > len(gap.prefix) + len(gap.suffix) + 3:
            assert prompt.ids == whole.ids[-room:], "other files go first, the first of them before the last"
    told = spelled(tokenizer, infill_prompt(tokenizer, gap, 23).ids)
    assert told == "<|fim_prefix|>567890123456789<|fim_suffix|>abcde<|fim_middle|>"
    short = infill_prompt(tokenizer, gap._replace(suffix="ab", files=()), 15)
    assert spelled(tokenizer, short.ids) == "<|fim_prefix|>0123456789<|fim_suffix|>ab<|fim_middle|>"


def test_a_suffix_is_not_begun_by_a_space() -> None:
    model = sentencepiece_model(control_symbols=["[PREFIX]", "[SUFFIX]"])
    tokenizer = SentencepieceTokenizer(model, "here")
    prompt = infill_prompt(tokenizer, Gap("the", "the end"))
    place = prompt.ids.index(tokenizer.control_tokens["[PREFIX]"])
    assert b"".join(map(tokenizer.bytes_of, prompt.ids[2:place])) == b"the end"
    assert b"".join(map(tokenizer.bytes_of, prompt.ids[place + 1 :])) == b" the"


def test_a_vocabulary_without_control_tokens_is_refused() -> None:
    tokenizer = of("<|fim_prefix|>", "<fim_suffix>", "<|im_end|>")
    with pytest.raises(RequestError, match="cannot fill in the middle: its vocabulary has no control tokens"):
        infill_prompt(tokenizer, GAP)
