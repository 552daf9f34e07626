"""Byte-level BPE: one vocabulary as tokenizer.json and in a GGUF file gives the ids of the library, and llama.cpp's."""

import random
import re
import unicodedata

import pytest

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.gguf_tokenizer import tokenizer_from_gguf
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.runtime.tokenizer.pre_tokenizers import PRE_TOKENIZERS, Alphabet
from mlxr_tests.vocabularies import (
    CONTROL,
    LANGUAGES,
    USER_DEFINED,
    WORDS,
    byte_level,
    composed,
    held_out_text,
    metadata_of,
    random_texts,
    write_gguf,
)


@pytest.fixture(scope="module", params=WORDS)
def both(request, tmp_path_factory):
    """A family's library tokenizer, and MLXR's from its tokenizer.json and from its GGUF metadata."""
    library = byte_level(WORDS[request.param], ignore_merges=PRE_TOKENIZERS[request.param].ignore_merges)
    path = tmp_path_factory.mktemp("json") / "tokenizer.json"
    library.save(str(path))
    metadata = metadata_of(library, request.param, add_bos_token=False)
    return library, load_tokenizer(path), tokenizer_from_gguf(metadata, "x.gguf"), PRE_TOKENIZERS[request.param]


def test_ids_on_held_out_text_and_random_strings(both):
    """2,500 strings for each of four families."""
    library, from_json, from_gguf, pre = both
    library.encode_special_tokens = True  # as `encode` without `parse_special`
    texts = [held_out_text()[:20_000], LANGUAGES, *LANGUAGES.splitlines(keepends=True), *random_texts(800)]
    for text, normal in zip(texts, composed(texts) if pre.composed else texts, strict=True):
        ids = library.encode(normal, add_special_tokens=False).ids
        assert from_json.encode(normal) == ids
        assert from_gguf.encode(text) == ids
        assert from_json.decode(ids) == from_gguf.decode(ids) == normal


def test_control_tokens_are_parsed_only_on_request(both):
    library, *ours, _ = both
    text = "<|im_start|>user\nDon't <think> it<|im_end|>"
    library.encode_special_tokens = False
    parsed = library.encode(text, add_special_tokens=False).ids
    assert {1, 2} < set(parsed)
    for tokenizer in ours:
        assert tokenizer.encode(text, parse_special=True) == parsed
        plain = tokenizer.encode(text)
        assert not set(plain) & {0, 1, 2}
        assert tokenizer.vocab_size - 1 in plain, "a token that is no control token is found in any text"
        assert tokenizer.decode(plain) == text
        assert tokenizer.decode(parsed) == "user\nDon't <think> it"
        assert [tokenizer.is_control(i) for i in range(4)] == [True, True, True, False]
        assert tokenizer.token_text(1) == CONTROL[1]


def test_any_ids_decode_as_the_library_does(both):
    """Random tokens spell broken UTF-8. Only the added token's own text is kept apart by us."""
    library, *ours, _ = both
    chance = random.Random(1)
    for _ in range(2000):
        ids = [chance.randrange(library.get_vocab_size() - 1) for _ in range(chance.randrange(12))]
        for tokenizer in ours:
            assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=True)
            decoder = tokenizer.stream_decoder()
            pieces = [*(decoder.push(token_id) for token_id in ids), decoder.flush()]
            assert "".join(pieces) == tokenizer.decode(ids)


def test_a_character_comes_with_its_last_byte(both):
    _, from_json, from_gguf, _ = both
    for tokenizer in (from_json, from_gguf):
        ids = tokenizer.encode("a🜚é")  # an alchemist's sign, which no training text has
        decoder = tokenizer.stream_decoder()
        pieces = [decoder.push(token_id) for token_id in ids]
        assert "".join(pieces) == "a🜚é"
        assert "" in pieces
        assert not any("\ufffd" in piece for piece in pieces)
        assert decoder.push(ids[1]) == ""
        assert decoder.flush() == "\ufffd"


def test_special_ids_of_a_gguf_file():
    metadata = metadata_of(byte_level(WORDS["qwen2"]), "qwen2", eot_token_id=5)
    tokenizer = tokenizer_from_gguf(metadata, "x")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (0, 2, {0, 2, 5})
    assert not tokenizer.adds_bos
    assert tokenizer.encode("") == []
    llama = tokenizer_from_gguf(metadata | {"tokenizer.ggml.pre": "llama-bpe"}, "x")
    assert llama.adds_bos
    assert llama.encode("") == [0]
    assert tokenizer_from_gguf(metadata | {"tokenizer.ggml.add_bos_token": True}, "x").encode("") == [0]
    assert tokenizer_from_gguf(metadata | {"tokenizer.ggml.add_eos_token": True}, "x").encode("") == [2]


def test_an_unnamed_way_to_split_is_the_default_one():
    metadata = metadata_of(byte_level(WORDS["gpt-2"]), "default")
    named = tokenizer_from_gguf(metadata, "x")
    del metadata["tokenizer.ggml.pre"]
    unnamed = tokenizer_from_gguf(metadata, "x")
    assert named.encode(LANGUAGES) == unnamed.encode(LANGUAGES)


GOOD = metadata_of(byte_level(WORDS["gpt-2"]), "gpt-2")
TOKENS = GOOD["tokenizer.ggml.tokens"]
MERGES = GOOD["tokenizer.ggml.merges"]


@pytest.mark.parametrize(
    "more",
    [MERGES[:40], ["quite unknown"], [" unknown"], ["unknown "], ["a b c"], ["unknown"], [""]],
    ids=["twice", "no tokens", "space first", "space last", "two spaces", "no space", "empty"],
)
def test_merges_that_say_nothing_new_change_nothing(more):
    """Of two equal ones the first counts."""
    ours = tokenizer_from_gguf(GOOD | {"tokenizer.ggml.merges": [*MERGES, *more]}, "x")
    assert ours.encode(LANGUAGES) == tokenizer_from_gguf(GOOD, "x").encode(LANGUAGES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "new-1"}, r"splits text as 'new-1' \(tokenizer\.ggml\.pre\), which is not supported; .*qwen2"),
        ({"pre": 5}, r"`tokenizer\.ggml\.pre` is 5, expected a name"),
        ({"merges": "x"}, r"no proper array `tokenizer\.ggml\.merges`"),
        ({"merges": None}, r"no proper array `tokenizer\.ggml\.merges`"),
        ({"token_type": [1]}, r"has \d+ tokens and 1 token_type; expected as many of each"),
    ],
)
def test_malformed_vocabularies(changes, message):
    with pytest.raises(TokenizerError, match=message) as caught:
        tokenizer_from_gguf(GOOD | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}, "bad")
    assert str(caught.value).startswith("bad: ")


def has_marks(text):
    return any(unicodedata.category(character).startswith("M") for character in text)


# Where llama.cpp's own expressions differ from the models' originals, which are what we have: it takes a wide space
# for an ordinary one, other scripts' digits for letters, sees a word's end between a digit and a letter, and splits
# words at the marks of Indic scripts.
DIFFERENT = {
    "deepseek-llm": re.compile("\u3000").search,
    "superbpe": re.compile(r"[^\x00-\x7f]").search,
    "tiny_aya": re.compile(r"\d").search,
    "cohere2moe": re.compile(r"\d").search,
    "afmoe": re.compile(r"\d").search,
} | dict.fromkeys(("gpt-4o", "kanana2", "kimi-k2", "llama4", "minimax-m2", "talkie", "tekken"), has_marks)


COMPOSED = {"qwen2", "deepseek-r1-qwen", "f2llmv2", "mpt", "olmo", "modern-bert", "command-r"}
"""Names of which the model's own tokenizer.json has the normalizer NFC. llama.cpp has none for any."""
NOT_COMPOSED = {
    # What llama.cpp's models/ggml-vocab-qwen35.gguf.out expects is two tokens for this letter and its accent, though
    # transformers' class for Qwen 3.5 composes them.
    "qwen35",
    *("llama-bpe", "gpt-2", "gpt-4o", "tekken", "smollm", "falcon", "deepseek-v3"),
}


def test_characters_are_composed_where_the_models_own_files_do_that():
    library = byte_level(WORDS["gpt-2"])
    for name in sorted(COMPOSED | NOT_COMPOSED):
        tokenizer = tokenizer_from_gguf(metadata_of(library, name, add_bos_token=False), "x.gguf")
        assert tokenizer.decode(tokenizer.encode("re\u0301sume")) == ("résume" if name in COMPOSED else "re\u0301sume")
    assert {name for name, pre in PRE_TOKENIZERS.items() if pre.composed} == COMPOSED


def test_every_name_gives_the_ids_of_llama_cpp(tmp_path):
    """Control characters and unassigned ones are left out: llama.cpp's tables of Unicode are older."""
    llama_cpp = pytest.importorskip("mlxr_tests.llama_cpp", exc_type=ImportError)
    library = byte_level(WORDS["gpt-2"])
    texts = [LANGUAGES, held_out_text()[:2000], *LANGUAGES.splitlines(keepends=True), *random_texts(60, seed=3)]
    texts = [re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ue000-\uffff\U00010000-\U0010ffff]", "", t) for t in texts]
    compared = 0
    for name in sorted(name for name, pre in PRE_TOKENIZERS.items() if pre.alphabet is Alphabet.BYTES):
        path = write_gguf(tmp_path / "x.gguf", metadata_of(library, name, add_bos_token=False))
        try:
            theirs = llama_cpp.llama_cpp_ids(path)
        except ValueError:
            continue  # a name that this build does not know yet
        ours = load_tokenizer(path)
        assert isinstance(ours, LibraryTokenizer)
        differs = DIFFERENT.get(name)
        for text in composed(texts):
            if differs is None or not differs(text):
                assert ours.encode(text) == theirs(text, False), (name, text)
        compared += 1
    assert compared > 80
    assert USER_DEFINED in LANGUAGES
