"""Corrupt safetensors files: every rule by its message, every truncation, and flipped bits.

The messages are the library's, but for the rules that it does not hold, which are ours.
"""

import json
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights import open_weights
from mlxr_tests.few import examples
from mlxr_tests.reads import counted_reads

TENSOR = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [24, 24]}
SMALL = save({f"layer.{i}": np.arange(12 * (i + 1), dtype=np.float32).reshape(3, -1) for i in range(3)})


def _write(path, header, data=b"\0" * 24):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def _read_all(path):
    file = open_weights(path)
    for name in file.tensors:
        file.read(name)


def test_a_proper_header(tmp_path):
    for metadata in ({"format": "pt"}, {}, None):
        header = {"__metadata__": metadata, "t": TENSOR}
        assert open_weights(_write(tmp_path / "x.safetensors", header)).tensors["t"].shape == (2, 3)


def test_where_each_tensor_lies(tmp_path):
    header = {
        "z": TENSOR | {"data_offsets": [4, 28], "skipped": 1},
        "é\U0001f600": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "empty": EMPTY | {"shape": [3, 0], "data_offsets": [4, 4]},
        "scalar": {"dtype": "F64", "shape": [], "data_offsets": [28, 36]},
    }
    path = _write(tmp_path / "x.safetensors", header, bytes(range(36)))
    data_start = path.stat().st_size - 36
    found = open_weights(path).tensors
    assert [(name, info.type, info.shape, info.offset - data_start) for name, info in found.items()] == [
        ("é\U0001f600", "BF16", (2,), 0),
        ("empty", "F32", (3, 0), 4),
        ("z", "F32", (2, 3), 4),
        ("scalar", "F64", (), 28),
    ]


def test_no_data_is_read_however_long(tmp_path):
    size = 2**36
    header = {"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    path = _write(tmp_path / "x.safetensors", header, b"")
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size + size)  # sparse: takes no space on the disk
    faults = _page_faults()
    with counted_reads() as reads:
        assert open_weights(path).tensors["t"].size_bytes == size
    assert 0 < sum(reads) < 2**20
    assert _page_faults() - faults < 2**14, (
        "the library maps the file; its data would take 2^15 faults even if 2 MiB each"
    )


def _page_faults():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped and open")
@pytest.mark.parametrize("header", [{"t": TENSOR}, {"t": 5}, {"t": TENSOR | {"dtype": "F4", "shape": [48]}}])
def test_nothing_stays_mapped_or_open(tmp_path, header):
    path = _write(tmp_path / "x.safetensors", header)
    try:
        kept = open_weights(path)
    except WeightsError as error:
        kept = error
    assert kept
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert path not in [link.resolve() for link in Path("/proc/self/fd").iterdir()]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{nonsense", "invalid JSON in header: key must be a string"),
        (b"\xff\xfe", "invalid UTF-8 in header"),
        (b"[" * 100_000, "invalid JSON in header: invalid type: sequence"),
        (b'{"t": ' + b"9" * 5000 + b"}", "number out of range"),
        (b"[]", "invalid JSON in header: invalid type: sequence"),
        (b'{"t": 1, "t": 2}', "invalid type: integer"),
        (b'{"t": {"dtype": "F32", "dtype": "F32"}}', "duplicate field `dtype`"),
        ({"__metadata__": [], "t": TENSOR}, "invalid type: sequence, expected a map"),
        ({"__metadata__": {"a": 1}, "t": TENSOR}, "invalid type: integer `1`, expected a string"),
        ({"t": 5}, "invalid type: integer `5`, expected struct TensorInfo"),
        ({"t": {"dtype": "F32", "shape": [2, 3]}}, "missing field `data_offsets`"),
        ({"t": TENSOR | {"dtype": "F13"}}, "unknown variant `F13`"),
        ({"t": TENSOR | {"dtype": "F13" * 1000}}, "unknown variant `F13F13.* characters"),
        ({"t": TENSOR | {"dtype": ["F32"]}}, "invalid type: sequence, expected string"),
        ({"t": TENSOR | {"shape": [2, -3]}}, "invalid value: integer `-3`, expected usize"),
        ({"t": TENSOR | {"shape": [2.0, 3]}}, "invalid type: floating point `2.0`, expected usize"),
        ({"t": TENSOR | {"shape": [True, 6]}}, "invalid type: boolean `true`, expected usize"),
        ({"t": TENSOR | {"shape": [2**62, 6]}}, "overflow computing buffer size"),
        ({"t": TENSOR | {"data_offsets": [24, 0]}}, "invalid offset for tensor `t`"),
        ({"t\x1b[2J\n": TENSOR | {"data_offsets": [24, 0]}}, r"invalid offset for tensor `t\\x1b\[2J\\n`"),
        ({"t": TENSOR | {"data_offsets": [0, 12, 24]}}, "invalid length 3, expected 2 elements"),
        ({"t": TENSOR | {"data_offsets": [0, 2**70]}}, "invalid type: floating point .* expected usize"),
        ({"t": TENSOR | {"data_offsets": [0, 20]}}, "invalid shape, data type, or offset"),
        ({"t": TENSOR | {"shape": [2**40, 2**10]}}, "invalid shape, data type, or offset"),
        ({"t": TENSOR, "u": TENSOR}, "invalid offset for tensor"),
        ({"t": TENSOR | {"data_offsets": [8, 32]}}, "invalid offset for tensor `t`"),
        ({"t": TENSOR, "u": TENSOR | {"data_offsets": [24, 48]}}, "the file is truncated, or longer than its tensors"),
        ({}, "the file is truncated, or longer than its tensors"),
        # what Python's JSON would raise other errors for, in a key that the library skips
        (json.dumps({"t": TENSOR}).replace("}}", ', "x": ' + "9" * 5000 + "}}").encode(), "number out of range"),
        (json.dumps({"t": TENSOR}).replace("}}", ', "x": ' + "[" * 9**5 + "}}").encode(), "recursion limit exceeded"),
        # the rules that the library does not hold
        (b'{"t": %s, "t": %s}' % (2 * (json.dumps(TENSOR).encode(),)), "the name 't' occurs twice"),
        (b'{"t": %s, "\\u0074": %s}' % (2 * (json.dumps(TENSOR).encode(),)), "the name 't' occurs twice"),
        ({"t": ["F32", [2, 3], [0, 24]]}, "tensor 't': expected an object with dtype, shape and data_offsets"),
        ({"t": TENSOR | {"dtype": "F4", "shape": [48]}}, "tensor 't': unknown dtype 'F4'"),
        ({"t": TENSOR | {"shape": [1] * 15 + [2, 3]}}, r"tensor 't': the shape '\[1, 1, .* is impossible"),
        ({"t": TENSOR, "u": EMPTY | {"shape": [0, 2**62]}}, r"tensor 'u': the shape '\[0, \d+\]' is impossible"),
    ],
)
def test_broken_rules(tmp_path, header, message):
    path = _write(tmp_path / "x.safetensors", header)
    with pytest.raises(WeightsError, match=message) as caught:
        open_weights(path)
    assert str(caught.value).startswith(f"{path}: corrupt safetensors header: ")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("size", [25, 2**31, 2**63, 2**64 - 1])
def test_header_length_beyond_the_file(tmp_path, size):
    path = tmp_path / "x.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + b"{}" + b" " * 22)
    with pytest.raises(WeightsError, match="truncated or not a safetensors file"):
        open_weights(path)


def test_types_known_but_not_readable(tmp_path):
    entry = {"dtype": "F8_E4M3FNUZ", "shape": [24], "data_offsets": [0, 24]}
    file = open_weights(_write(tmp_path / "x.safetensors", {"t": entry}))
    with pytest.raises(WeightsError, match="tensor 't': elements of type F8_E4M3FNUZ cannot be read; convert to BF16"):
        file.read("t")


@pytest.mark.parametrize("percent", range(100))
def test_every_truncation_is_refused(tmp_path, percent):
    path = tmp_path / "x.safetensors"
    path.write_bytes(SMALL[: len(SMALL) * percent // 100])
    with pytest.raises(WeightsError, match=r"x\.safetensors: "):
        open_weights(path)


@settings(max_examples=examples(250, 120), deadline=None)
@given(bits=st.sets(st.integers(0, 8 * (8 + int.from_bytes(SMALL[:8], "little")) - 1), min_size=1, max_size=6))
def test_flipped_bits_raise_nothing_else(tmp_path_factory, bits):
    data = bytearray(SMALL)
    for bit in bits:
        data[bit // 8] ^= 1 << bit % 8
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(data)
    try:
        _read_all(path)
    except WeightsError as error:
        assert str(path) in str(error)
