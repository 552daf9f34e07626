"""tokenizer.json and the files beside it: special tokens as transformers has them, and files that are none."""

import json
import random

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.engine.model_tokenizer import ModelTokenizer
from mlxr.runtime.tokenizer import load_tokenizer
from mlxr.runtime.weights.weight_file import WeightFile
from mlxr_tests.vocabularies import (
    LANGUAGES,
    WORDS,
    byte_level,
    held_out_text,
    metaspace,
    random_texts,
)

CASES = [LANGUAGES, *LANGUAGES.splitlines(keepends=True), *random_texts(1000, seed=5), "", " ", "  a", "\n"]


def save(folder, tokenizer, **files):
    """A model's folder: its tokenizer.json and further JSON files."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def bytes_tokenizer():
    return byte_level(WORDS["llama-bpe"])


@pytest.fixture(scope="module")
def spaced():
    return metaspace()


def with_bos(tokenizer, bos, ids):
    """A copy that gives every text a BOS, as tokenizer.json says it."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, ids)]
    )
    return copy


def test_ids_are_those_of_transformers(tmp_path, bytes_tokenizer, spaced):
    transformers = pytest.importorskip("transformers")
    for name, tokenizer, config in (
        ("bos", with_bos(bytes_tokenizer, "<|endoftext|>", 0), {"bos_token": "<|endoftext|>"}),
        ("none", bytes_tokenizer, {"bos_token": None, "eos_token": "<|im_end|>"}),
        ("llama", with_bos(spaced, "<s>", 1), {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    ):
        config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
        folder = save(tmp_path / name, tokenizer, tokenizer_config=config)
        theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
        ours = load_tokenizer(folder)
        for text in CASES:
            assert ours.encode(text, parse_special=True) == theirs.encode(text), (name, text)
        assert ours.bos_id == theirs.bos_token_id
        assert ours.eos_id == theirs.eos_token_id


@pytest.mark.parametrize("threads", ["true", "false"])
def test_a_tokenizer_with_spaces_as_signs(tmp_path, spaced, monkeypatch, threads):
    """The library's own decoding is the measure wherever the bytes are UTF-8."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", threads)
    ours = load_tokenizer(save(tmp_path, spaced))
    assert ours.rule.num_stripped_spaces == 1
    for text in [held_out_text()[:5000], 3 * held_out_text()[:5000], *CASES]:
        spaced.encode_special_tokens = True
        ids = spaced.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False) == ids
        assert ours.decode(ids) == spaced.decode(ids) == text.replace("▁", " ")
    chance = random.Random(2)
    for _ in range(1000):
        ids = [chance.randrange(259, ours.vocab_size) for _ in range(chance.randrange(12))]
        assert ours.decode(ids) == spaced.decode(ids)


def test_bytes_that_are_no_text(tmp_path, spaced):
    ours = load_tokenizer(save(tmp_path, spaced))
    byte = 3  # the id of <0x00>
    decoder = ours.stream_decoder()
    assert [decoder.push(byte + value) for value in "🎉".encode()] == ["", "", "", "🎉"]
    assert [decoder.push(byte + value) for value in (0xE2, 0x82, 0x41)] == ["", "", "\ufffdA"]
    assert decoder.push(byte + 0xF0) == ""
    assert decoder.flush() == "\ufffd"


@pytest.mark.parametrize(
    ("config", "before", "after"),
    [
        ({}, [1], []),
        ({"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": False, "add_eos_token": True}, [], [2]),
    ],
)
def test_what_a_text_is_given(tmp_path, spaced, config, before, after):
    folder = save(
        tmp_path, with_bos(spaced, "<s>", 1), tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"} | config
    )
    tokenizer = load_tokenizer(folder)
    text = tokenizer.encode("a", add_special=False)
    assert tokenizer.encode("a") == [*before, *text, *after]
    assert tokenizer.adds_bos == bool(before)


def test_every_id_that_ends_an_answer(tmp_path, bytes_tokenizer):
    config = {"eos_token": {"content": "<|im_end|>", "special": True}}
    folder = save(
        tmp_path,
        bytes_tokenizer,
        tokenizer_config=config,
        generation_config={"eos_token_id": [2, 0]},
        config={"eos_token_id": 7},
    )
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eos_id, tokenizer.eos_ids) == (2, {2, 0, 7})
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
    assert load_tokenizer(folder).eos_id == 1


@pytest.mark.parametrize("content", ['{"eos_token_id": [2, 99999, -1, "3", null]}', "{", "[1]"])
def test_ids_that_are_none_keep_no_model_from_loading(tmp_path, bytes_tokenizer, content):
    """transformers loads such folders, too."""
    folder = save(tmp_path, bytes_tokenizer, tokenizer_config={"eos_token": "<|im_end|>"})
    (folder / "generation_config.json").write_text(content)
    assert load_tokenizer(folder).eos_ids == {2}


def test_tokens_beyond_the_vocabulary_are_no_part_of_it(tmp_path, bytes_tokenizer):
    """A model may lack the ids of tokens that were added to its tokenizer, as for pictures."""
    tokenizer = Tokenizer.from_str(bytes_tokenizer.to_str())
    own = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken("<image>")])
    loaded = load_tokenizer(save(tmp_path, tokenizer))
    assert (loaded.vocab_size, loaded.required_size) == (own + 1, own - 1)
    assert loaded.encode("<image>", parse_special=True) == [own]
    with pytest.raises(TokenizerError, match=f"token id {own + 1} is outside the vocabulary of {own + 1}"):
        loaded.decode([own + 1])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config", "{", r"tokenizer_config\.json: cannot be read as JSON"),
        ("tokenizer_config", "[" * 100_000, r"tokenizer_config\.json: cannot be read as JSON"),
        ("tokenizer_config", "[1]", r"tokenizer_config\.json: holds no JSON object"),
        ("tokenizer_config", '{"bos_token": 5}', "`bos_token` is 5, expected a token's text"),
        ("tokenizer_config", '{"add_bos_token": 1}', "`add_bos_token` is 1, expected true or false"),
        ("tokenizer_config", '{"added_tokens_decoder": {"x": 1}}', "has the entry 'x': 1"),
    ],
)
def test_faulty_files_beside(tmp_path, bytes_tokenizer, name, content, message):
    save(tmp_path, bytes_tokenizer)
    (tmp_path / f"{name}.json").write_text(content)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"model": {"type": "BPE"}}', "\0", "{" * 1000])
def test_files_that_are_no_tokenizer(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: corrupt, or not of a kind that is known: "):
        load_tokenizer(tmp_path)


def test_flipped_bits_raise_nothing_else(tmp_path, bytes_tokenizer):
    raw = bytes_tokenizer.to_str().encode()
    chance = random.Random(4)
    for _ in range(150):
        data = bytearray(raw)
        for _ in range(chance.randrange(1, 4)):
            data[chance.choice([chance.randrange(1500), chance.randrange(len(raw))])] ^= 1 << chance.randrange(8)
        (tmp_path / "tokenizer.json").write_bytes(data)
        try:
            tokenizer = load_tokenizer(tmp_path)
            tokenizer.decode(tokenizer.encode("Once upon a time, é 漢\0"))
        except TokenizerError as error:
            assert "tokenizer.json" in str(error)


DECODERS = [
    None,
    decoders.WordPiece(),
    decoders.WordPiece("a", cleanup=False),
    decoders.Sequence([decoders.Strip("a", 1, 0), decoders.Replace(Regex("[bc]+"), "x")]),
    decoders.BPEDecoder("</w>"),
    decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("a")]),
    decoders.Metaspace("a", prepend_scheme="never"),
]


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_decoders_of_many_kinds(tmp_path, bytes_tokenizer, decoder):
    """Of random tokens the text is the library's, whole and token by token."""
    content = json.loads(bytes_tokenizer.to_str())
    content["decoder"] = None
    content["added_tokens"].append(content["added_tokens"][-1] | {"content": "##aabca</w>", "id": 1501})
    tokenizer = Tokenizer.from_str(json.dumps(content))
    if decoder is not None:
        tokenizer.decoder = decoder
    ours = load_tokenizer(save(tmp_path, tokenizer))
    chance = random.Random(3)
    for _ in range(300):
        ids = [chance.choice([0, 1501, chance.randrange(ours.vocab_size - 1)]) for _ in range(chance.randrange(9))]
        stream = ours.stream_decoder()
        assert ours.decode(ids) == tokenizer.decode(ids)
        assert "".join([*map(stream.push, ids), stream.flush()]) == tokenizer.decode(ids)


def test_decoders_that_cannot_be_streamed_are_refused(tmp_path, bytes_tokenizer):
    tokenizer = Tokenizer.from_str(bytes_tokenizer.to_str())
    for decoder, message in (
        (decoders.CTC(), "its decoder has the step .*CTC.*supported are ByteLevel"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip("x", 1, 0)]), "the step .*Strip.* for whole texts"),
    ):
        tokenizer.decoder = decoder
        with pytest.raises(TokenizerError, match=message):
            load_tokenizer(save(tmp_path, tokenizer))


def test_added_tokens_are_decoded_like_others(tmp_path, spaced):
    """Gemma's tokenizer.json has runs of spaces among its added tokens."""
    tokenizer = Tokenizer.from_str(spaced.to_str())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken("▁▁▁▁", normalized=True)])
    ours = load_tokenizer(save(tmp_path, tokenizer))
    ids = tokenizer.encode("a    b", add_special_tokens=False).ids
    stream = ours.stream_decoder()
    assert ours.encode("a    b", add_special=False) == ids
    assert ours.vocab_size - 1 in ids
    assert ours.decode(ids) == "".join(map(stream.push, ids)) == tokenizer.decode(ids) == "a    b"


def test_a_metaspace_decoder(tmp_path):
    tokenizer = Tokenizer(models.BPE(vocab={"▁": 0, "a": 1, "▁a": 2}, merges=[("▁", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.normalizer = normalizers.NFC()
    ours = load_tokenizer(save(tmp_path, tokenizer))
    assert ours.encode("a a") == [2, 2]
    assert ours.decode([2, 2]) == tokenizer.decode([2, 2]) == "a a"


def test_lone_surrogates_are_refused(tmp_path, bytes_tokenizer):
    with pytest.raises(TokenizerError, match="lone surrogate"):
        load_tokenizer(save(tmp_path, bytes_tokenizer)).encode("ab\udc80")


def test_a_tokenizer_json_comes_before_a_sentencepiece_model(tmp_path, bytes_tokenizer):
    (tmp_path / "tokenizer.model").write_bytes(b"")
    (tmp_path / "model.safetensors").touch()
    save(tmp_path, bytes_tokenizer)
    for path in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "model.safetensors"):
        assert load_tokenizer(path).source == str(tmp_path / "tokenizer.json")
    other = tmp_path / "mine.json"
    (tmp_path / "tokenizer.json").rename(other)
    (tmp_path / "tokenizer.model").unlink()
    assert load_tokenizer(other).source == str(other)


def test_a_gguf_model_ends_where_it_says_whatever_its_tokenizer(tmp_path, bytes_tokenizer):
    """The folder of --tokenizer may name fewer ids than the model's own file."""
    folder = save(tmp_path, bytes_tokenizer, tokenizer_config={"eos_token": "<|im_start|>"})
    assert load_tokenizer(folder).eos_ids == {1}
    metadata = {
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": 10**6,
    }
    file = WeightFile(tmp_path / "m.gguf", "gguf", {}, metadata)
    tokenizer = ModelTokenizer(file, tmp_path / "m.gguf", folder, 10**6).require()
    assert tokenizer.eos_ids == {0, 1, 7, 2}, "2 is <|im_end|>, which llama.cpp knows by its name"
