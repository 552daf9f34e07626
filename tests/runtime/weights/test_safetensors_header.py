"""Corrupt safetensors files: every rule by its message, every truncation, and flipped bits."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights import open_weights

TENSOR = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
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
    header = {"__metadata__": {"format": "pt"}, "t": TENSOR}
    assert open_weights(_write(tmp_path / "x.safetensors", header)).tensors["t"].shape == (2, 3)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{nonsense", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"t": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"t": 1, "t": 2}', "the name 't' occurs twice"),
        ({"__metadata__": {"a": 1}, "t": TENSOR}, "__metadata__ is not a map from strings to strings"),
        ({"t": 5}, "tensor 't': expected an object with dtype, shape and data_offsets"),
        ({"t": TENSOR | {"more": 1}}, "expected an object with dtype"),
        ({"t": TENSOR | {"dtype": "F13"}}, "tensor 't': unknown dtype 'F13'"),
        ({"t": TENSOR | {"dtype": ["F32"]}}, "unknown dtype"),
        ({"t": TENSOR | {"shape": [2, -3]}}, "the shape is not a list"),
        ({"t": TENSOR | {"shape": [2.0, 3]}}, "the shape is not a list"),
        ({"t": TENSOR | {"shape": [True, 6]}}, "the shape is not a list"),
        ({"t": TENSOR | {"shape": [1] * 17}}, "at most 16 sizes"),
        ({"t": TENSOR | {"shape": [0, 2**62]}}, "is impossible"),
        ({"t": TENSOR | {"data_offsets": [24, 0]}}, "not a pair"),
        ({"t": TENSOR | {"data_offsets": [0, 12, 24]}}, "not a pair"),
        ({"t": TENSOR | {"data_offsets": [0, 2**70]}}, "not a pair"),
        ({"t": TENSOR | {"data_offsets": [0, 20]}}, r"shape \[2, 3\] in F32 takes 24 bytes, got 20"),
        ({"t": TENSOR | {"shape": [2**40, 2**10]}}, "takes 4503599627370496 bytes, got 24"),
        ({"t": TENSOR, "u": TENSOR}, "tensor 'u' begins at byte 0 .* ends at 24: tensors overlap"),
        ({"t": TENSOR | {"data_offsets": [8, 32]}}, "tensors leave a hole"),
        ({"t": TENSOR, "u": TENSOR | {"data_offsets": [24, 48]}}, "take 48 bytes, the file holds 24: it is truncated"),
        ({}, "the tensors take 0 bytes, the file holds 24: it is longer than its tensors"),
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
    with pytest.raises(WeightsError, match=f"the header is said to take {size} bytes, the file has 24"):
        open_weights(path)


def test_types_known_but_not_readable(tmp_path):
    entry = {"dtype": "F8_E4M3", "shape": [24], "data_offsets": [0, 24]}
    file = open_weights(_write(tmp_path / "x.safetensors", {"t": entry}))
    with pytest.raises(WeightsError, match="tensor 't': elements of type F8_E4M3 cannot be read; convert to BF16"):
        file.read("t")


@pytest.mark.parametrize("percent", range(100))
def test_every_truncation_is_refused_quickly(tmp_path, percent):
    path = tmp_path / "x.safetensors"
    path.write_bytes(SMALL[: len(SMALL) * percent // 100])
    begin = time.monotonic()
    with pytest.raises(WeightsError, match=r"x\.safetensors: "):
        open_weights(path)
    assert time.monotonic() - begin < 2


@settings(max_examples=400, deadline=2000)
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
