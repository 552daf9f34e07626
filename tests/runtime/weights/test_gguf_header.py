"""Corrupt GGUF files: every rule by its message, every truncation, and flipped bits; metadata against the library."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import MlxrError, WeightsError
from mlxr.runtime.tokenizer import load_tokenizer
from mlxr.runtime.weights import gguf_header, gguf_metadata, open_weights
from mlxr.runtime.weights.headers_read_once import headers_read_once
from mlxr_tests.few import examples
from mlxr_tests.reads import counted_reads

GOLDEN = Path(__file__).parents[2] / "data/golden/tiny-Q8_0.gguf"
F32, Q8_0, U32, U8, BOOL, STRING, ARRAY = 0, 8, 4, 0, 7, 8, 9


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def tensor(name, dims, kind=F32, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def build(entries=(), tensors=(), *, data=b"\0" * 128, version=3, counts=None, magic=b"GGUF"):
    num_tensors, num_entries = counts or (len(tensors), len(entries))
    head = magic + struct.pack("<IQQ", version, num_tensors, num_entries) + b"".join(entries) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


@pytest.fixture
def small(tmp_path):
    """A small file with every part of the format: strings, arrays, numbers, an F32 and a Q8_0 tensor."""
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_array("words", ["a", "bc", "déf"])
    writer.add_array("numbers", [1.5, 2.5, 3.5])
    writer.add_bool("flag", True)
    writer.add_tensor("norm", np.arange(32, dtype=np.float32))
    rows = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    writer.add_tensor(
        "rows", gguf.quantize(rows, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_equals_the_library(small):
    for path in (small, GOLDEN):
        fields = gguf.GGUFReader(path).fields
        expected = {name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")}
        assert gguf_metadata(path) == expected


def test_a_hand_made_file(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(
        build([entry("general.alignment", U32, struct.pack("<I", 64))], [tensor("t", [4, 2])]) + b"\0" * 32
    )
    assert open_weights(path).read("t").shape == (2, 4)
    path.write_bytes(build(version=2))
    assert open_weights(path).tensors == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty; get the file again"),
        (build(magic=b"GGML"), "begins with b'GGML', expected b'GGUF'"),
        (build(version=1), "version 1; versions 2 and 3"),
        (build(version=4), "version 4; versions 2 and 3"),
        (build(version=3 << 24), "big-endian"),
        (build(counts=(2**63, 0)), "9223372036854775808 tensors do not fit"),
        (build(counts=(0, 2**63)), "9223372036854775808 metadata entries do not fit"),
        (build([entry("k", 77, b"")]), "metadata of 'k' has the unknown type 77"),
        (build([entry(b"\xff", U32, b"\0" * 4)]), "a metadata key is not UTF-8"),
        (build([entry("k", U32, b"\0" * 4)] * 2), "the metadata key 'k' occurs twice"),
        (build([entry("k", STRING, struct.pack("<Q", 2**62))]), "the metadata of 'k' takes 4611686018427387904 bytes"),
        (
            build([entry("k", ARRAY, struct.pack("<IQ", U8, 2**61))]),
            "2305843009213693952 elements in the metadata of 'k'",
        ),
        (
            build([entry("k", ARRAY, struct.pack("<IQ", STRING, 2**61))]),
            "2305843009213693952 strings in the metadata of 'k'",
        ),
        (
            build([entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]),
            "an array of type 9, which is unknown or itself an array",
        ),
        (
            build([entry("general.alignment", U32, struct.pack("<I", 48))]),
            "general.alignment is '48', expected a power",
        ),
        (build([entry("general.alignment", U32, b"\0" * 4)]), "general.alignment is '0'"),
        (build([entry("general.alignment", BOOL, b"\1")]), "general.alignment is 'True'"),
        (build([], [tensor("t", [1] * 5)]), "tensor 't' has 5 dimensions, at most 4"),
        (build([], [tensor("t", [33], Q8_0)]), "rows of 33 elements, not a multiple of Q8_0's block of 32"),
        (build([], [tensor("t", [2**40, 2**40])]), "the impossible shape"),
        (build([], [tensor("t", [2**60, 0])]), "the impossible shape"),
        (build([], [tensor("t", [4]), tensor("t", [4], offset=32)]), "the tensor 't' occurs twice"),
        (build([], [tensor("t", [4], offset=8)]), "begins at 8, which is not a multiple of 32"),
        (build([], [tensor("t", [64])]), "tensor 't' ends at byte .*: it is truncated"),
        (build([], [tensor("t", [4], offset=2**63)]), "ends at byte .*: it is truncated"),
        (build([], [tensor("t", [16]), tensor("u", [4], offset=32)]), "the tensors 't' and 'u' overlap"),
        (build([], [tensor(b"\xff\xfe", [4])]), "a tensor's name is not UTF-8"),
    ],
)
def test_broken_rules(tmp_path, data, message):
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=message) as caught:
        open_weights(path)
    assert str(caught.value).startswith(f"{path}: corrupt GGUF file: ")


@pytest.mark.parametrize("number", [4, 42])
def test_a_type_that_is_not_known_need_not_be_corrupt(tmp_path, number):
    """4 is no longer in use; llama.cpp's 42 (Q2_0) is in no release of the `gguf` package yet."""
    path = tmp_path / "x.gguf"
    path.write_bytes(build([], [tensor("t", [4], number)]))
    with pytest.raises(WeightsError, match=rf"x\.gguf: tensor 't' is of type {number}, which is newer than MLXR knows"):
        open_weights(path)


@pytest.mark.parametrize("source", ["small", "golden"])
def test_every_truncation_is_refused_without_reading_on(tmp_path, small, source):
    data = (small if source == "small" else GOLDEN).read_bytes()
    path = tmp_path / "cut.gguf"
    last = max(
        info.offset + info.size_bytes for info in open_weights(small if source == "small" else GOLDEN).tensors.values()
    )
    for percent in range(100):
        path.write_bytes(data[: min(len(data) * percent // 100, last - 1)])
        with counted_reads() as reads, pytest.raises(WeightsError, match=r"cut\.gguf: "):
            open_weights(path)
        assert sum(reads) <= 2 * path.stat().st_size, "at most once to know the kind and once to scan it"


HEADER_BYTES = min(info.offset for info in open_weights(GOLDEN).tensors.values())
HEADER = GOLDEN.read_bytes()


@settings(max_examples=examples(250, 120), deadline=None)
@given(
    bits=st.sets(
        st.integers(0, 8 * 1024) | st.integers(8 * (HEADER_BYTES - 1400), 8 * HEADER_BYTES - 1), min_size=1, max_size=4
    )
)
def test_flipped_bits_raise_nothing_else(tmp_path_factory, bits):
    data = bytearray(HEADER)
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(data)
    try:
        file = open_weights(path)
        for name in list(file.tensors)[:4]:
            file.read(name)
    except WeightsError as error:
        assert str(path) in str(error)
    try:
        load_tokenizer(path).encode("some text")
    except MlxrError as error:
        assert str(path) in str(error)


def test_a_header_is_read_once_where_that_is_asked_for(tmp_path, monkeypatch):
    scans = []
    scan = gguf_header._scan
    monkeypatch.setattr(gguf_header, "_scan", lambda *arguments: scans.append(arguments[1]) or scan(*arguments))
    path = tmp_path / "a.gguf"
    path.write_bytes(GOLDEN.read_bytes())
    with headers_read_once():
        assert open_weights(path) == open_weights(path)
        assert len(scans) == 1
        path.write_bytes(build([entry("a", U8, b"\1")]))
        assert gguf_metadata(path) == {"a": 1}, "a file that changed is read again"
    assert gguf_metadata(path) == {"a": 1}
    assert len(scans) == 3
