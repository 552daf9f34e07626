"""The bound on a text's tokens that is found without encoding it: never above their number, whatever the tokenizer."""

import itertools
import unicodedata
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr_tests.vocabularies import (
    CONTROL,
    WORDS,
    byte_level,
    metadata_of,
    metadata_of_pieces,
    metaspace,
    random_texts,
    sentencepiece_model,
)


def changed(change: Callable[[Library], object]) -> Tokenizer:
    library = byte_level(WORDS["llama-bpe"])
    change(library)
    return LibraryTokenizer(library, "tokenizer.json")


LONG_WORD = "ᾯ" * 40


def composing(library: Library) -> None:
    library.normalizer = normalizers.NFC()
    library.add_tokens([AddedToken(LONG_WORD)])


def stripping(library: Library) -> None:
    library.add_tokens([AddedToken("<wide>", lstrip=True, rstrip=True, normalized=False)])


def dropping(library: Library) -> None:
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])


def removing(library: Library) -> None:
    library.normalizer = normalizers.Replace("a", "")


def without_bytes(library: Library) -> None:
    library.pre_tokenizer = pre_tokenizers.Metaspace()


BOUNDED = {
    "byte level": lambda: changed(lambda _: None),
    "composing": lambda: changed(composing),
    "stripping": lambda: changed(stripping),
    "qwen2 of gguf": lambda: tokenizer_from_gguf(metadata_of(byte_level(WORDS["qwen2"]), "qwen2"), "m.gguf"),
    "metaspace": lambda: LibraryTokenizer(metaspace(), "tokenizer.json"),
    "sentencepiece": lambda: SentencepieceTokenizer(sentencepiece_model(), "tokenizer.model"),
    "fewer spaces": lambda: SentencepieceTokenizer(sentencepiece_model(remove_extra_whitespaces=True), "t.model"),
    "pieces of gguf": lambda: tokenizer_from_gguf(metadata_of_pieces(sentencepiece_model()), "m.gguf"),
}
UNBOUNDED = {
    "dropping": lambda: changed(dropping),
    "removing": lambda: changed(removing),
    "without bytes": lambda: changed(without_bytes),
    "unigram": lambda: LibraryTokenizer(_unigram(), "tokenizer.json"),
    "no byte pieces": lambda: SentencepieceTokenizer(sentencepiece_model(byte_fallback=False), "t.model"),
    "rewriting": lambda: SentencepieceTokenizer(sentencepiece_model(normalization_rule_name="nmt_nfkc"), "t.model"),
}


def _unigram() -> Library:
    library = Library(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    library.decoder = metaspace().decoder
    return library


def hard_texts() -> list[str]:
    """Runs of what tokenizers leave out or make shorter, alone and between words."""
    decomposed = unicodedata.normalize("NFD", "ᾯΐệ각") * 9 + "\u212a" * 30
    runs = [" " * 300, "\n" * 300, "\u2581" * 300, " \u3000\x85\t" * 80, decomposed, "<wide>".center(300), "aaaa" * 80]
    runs += [unicodedata.normalize("NFD", LONG_WORD), "".join(CONTROL) * 9, "\U0010fffd" * 50, "\x00\x01" * 50]
    return [*runs, *map("".join, itertools.permutations(runs, 2)), *random_texts(200)]


@pytest.mark.parametrize("name", BOUNDED)
def test_no_text_has_fewer_tokens_than_the_bound(name: str) -> None:
    tokenizer = BOUNDED[name]()
    for text in hard_texts():
        for parse_special in (False, True):
            found = len(tokenizer.encode(text, add_special=False, parse_special=parse_special))
            assert tokenizer.least_tokens(text) <= found, text
    assert tokenizer.least_tokens("word " * 100_000) > 1000


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_tokenizer_that_may_leave_out_text_has_no_bound(name: str) -> None:
    assert UNBOUNDED[name]().least_tokens("word " * 100_000) == 0
