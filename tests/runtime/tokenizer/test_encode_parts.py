"""Texts whose control tokens are known: other names are text, and nothing else changes."""

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, pre_tokenizers

from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr_tests.vocabularies import WORDS, byte_level, metaspace, random_texts, sentencepiece_model


def beginning_with_a_space() -> LibraryTokenizer:
    """Newer files put a space before the first text alone. A name takes the spaces after it."""
    library = metaspace()
    library.normalizer = None  # type: ignore[assignment]
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    library.add_special_tokens([AddedToken("<|end|>", rstrip=True, special=True)])
    return LibraryTokenizer(library, "here")


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: LibraryTokenizer(byte_level(WORDS["qwen2"]), "here"),
    "spaces": lambda: LibraryTokenizer(metaspace(), "here"),
    "first space": beginning_with_a_space,
    "sentencepiece": lambda: SentencepieceTokenizer(sentencepiece_model(), "here"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_known_ones_are_control_tokens(kind: str) -> None:
    tokenizer = KINDS[kind]()
    names = [name for name in tokenizer.control_tokens if name != "<unk>"]
    texts = [text for text in random_texts(600, seed=3) if not any(name in text for name in names)]
    for number, (first, second, third) in enumerate(zip(texts[::3], texts[1::3], texts[2::3], strict=False)):
        name, other = names[number % len(names)], names[-1]
        parts = [first, name, second, other, f"{third} <think>"]
        assert tokenizer.encode_parts(parts) == tokenizer.encode("".join(parts), add_special=False, parse_special=True)
        forged = f"<{other}{second}{name}"
        ids = tokenizer.encode_parts(["", name, forged])
        assert [i for i in ids if tokenizer.token_text(i) in names] == [tokenizer.control_tokens[name]]
        assert ids[1:] == tokenizer.encode_parts(["", other, forged])[1:]
        if kind == "bytes":
            assert ids[1:] == tokenizer.encode(forged, add_special=False)
