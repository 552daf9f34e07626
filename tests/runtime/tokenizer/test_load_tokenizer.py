"""Finding a tokenizer, and files that are none: truncated, flipped, too large."""

import os
import shutil
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import TokenizerError, WeightsError
from mlxr.runtime.tokenizer import load_tokenizer
from mlxr.runtime.tokenizer.sentencepiece_tokenizer import SentencepieceTokenizer
from mlxr_tests.few import examples

TESTS = Path(__file__).parents[2]
MODEL = TESTS.parent / "models/storyteller/tokenizer.model"
TINY = TESTS / "data/golden/tiny-Q8_0.gguf"
RAW = MODEL.read_bytes()


def write_gguf(path, **metadata):
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_string(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", ["tokenizer.model", "model.safetensors", "model.safetensors.index.json", "."])
def test_the_model_is_found_in_or_beside(tmp_path, name):
    shutil.copy(MODEL, tmp_path)
    (tmp_path / name).touch()
    assert load_tokenizer(tmp_path / name).source == str(tmp_path / "tokenizer.model")


def test_a_model_of_any_name(tmp_path):
    shutil.copy(MODEL, tmp_path / "spiece.bpe")
    assert load_tokenizer(str(tmp_path / "spiece.bpe")).vocab_size == 4096


def test_a_gguf_file_has_its_own(tmp_path):
    shutil.copy(MODEL, tmp_path)
    shutil.copy(TINY, tmp_path / "blob")
    assert load_tokenizer(tmp_path / "blob").vocab_size == 640
    (tmp_path / "tokenizer.model").unlink()
    shutil.copy(TINY, tmp_path / "x.gguf")
    assert load_tokenizer(tmp_path).vocab_size == 640


def test_a_gguf_file_without_vocabulary_takes_the_model_beside(tmp_path):
    path = write_gguf(tmp_path / "x.gguf")
    with pytest.raises(TokenizerError, match=r"and there is no tokenizer\.json or tokenizer\.model beside"):
        load_tokenizer(path)
    shutil.copy(MODEL, tmp_path)
    assert load_tokenizer(path).vocab_size == 4096


def test_a_gguf_file_of_another_kind_is_refused_even_beside_a_model(tmp_path):
    shutil.copy(MODEL, tmp_path)
    with pytest.raises(TokenizerError, match=r"x\.gguf: its tokenizer is of the kind 'rwkv', which is not supported"):
        load_tokenizer(write_gguf(tmp_path / "x.gguf", model="rwkv"))


def test_nothing_there(tmp_path):
    with pytest.raises(TokenizerError, match=r"no such file; expected tokenizer\.json, tokenizer\.model"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(
        TokenizerError,
        match=r"holds no tokenizer\.json, no tokenizer\.model and no single \.gguf model; put the model's own",
    ):
        load_tokenizer(tmp_path)


def test_too_large_to_be_one(tmp_path):
    (tmp_path / "tokenizer.model").touch()
    os.truncate(tmp_path / "tokenizer.model", 2**40)
    with pytest.raises(TokenizerError, match="1099511627776 bytes is too large"):
        load_tokenizer(tmp_path)


def test_a_corrupt_gguf_file_is_a_fault_of_the_weights(tmp_path):
    (tmp_path / "x.gguf").write_bytes(TINY.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="corrupt GGUF file"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\0", b"garbage", b"\x80" * 100, b"{}", RAW[1:]])
def test_files_that_are_no_model(tmp_path, data):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(TokenizerError, match=r"tokenizer\.model: corrupt, or not a sentencepiece model") as caught:
        load_tokenizer(tmp_path)
    assert "INTERNAL" not in str(caught.value) and ".cc" not in str(caught.value)


def test_truncation():
    """A cut that falls between two pieces leaves a proper, shorter model, which is not refused."""
    refused = 0
    for percent in range(100):
        try:
            SentencepieceTokenizer(RAW[: len(RAW) * percent // 100], "cut").encode("a cat")
        except TokenizerError as error:
            refused += 1
            assert str(error).startswith("cut: corrupt")
    assert refused > 90


@settings(max_examples=examples(300, 120), deadline=None)
@given(
    bits=st.sets(st.integers(0, 8 * 600) | st.integers(8 * (len(RAW) - 110), 8 * len(RAW) - 1), min_size=1, max_size=5)
)
def test_flipped_bits_raise_nothing_else(bits):
    data = bytearray(RAW)
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    try:
        tokenizer = SentencepieceTokenizer(bytes(data), "flipped")
        ids = tokenizer.encode("Once upon a time, é 漢\0")
        decoder = tokenizer.stream_decoder()
        assert "".join([*(decoder.push(token_id) for token_id in ids), decoder.flush()]) == tokenizer.decode(ids)
    except TokenizerError as error:
        assert str(error).startswith("flipped: ")
