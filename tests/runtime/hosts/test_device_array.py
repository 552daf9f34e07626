"""Arrays that MLX reads from a stream: what an array filled in place holds. Here MLX's own memory is the CPU's."""

import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError, WeightsError
from mlxr.runtime.hosts.cuda import device_array
from mlxr.runtime.hosts.cuda import host as cuda_host
from mlxr.runtime.hosts.cuda.card_writer import CardWriter
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.device_array import filled_on_device, sent
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.weights.load_weights import Fill, Put, in_place
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.fake_driver import use_driver
from mlxr_tests.storyteller import Q8_0, storyteller_spec

SHAPES = [(1,), (3,), (8,), (1, 1), (1, 5), (5, 1), (3, 7), (129, 64), (2048, 1025), (12345678,)]


def filling(size_bytes: int) -> Fill:
    """Random bytes, in three pieces."""
    content = np.random.default_rng(size_bytes).integers(0, 256, size_bytes, np.uint8)

    def fill(put: Put) -> None:
        cuts = [size_bytes * part // 3 for part in range(4)]
        for first, last in reversed([*pairwise(cuts)]):
            put(first, content[first:last])

    return fill


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.uint16, mx.uint8], ids=str)
def test_a_stream_gives_what_is_filled_in_place(dtype: mx.Dtype, shape: tuple[int, ...]) -> None:
    fill = filling(prod(shape) * dtype.size)
    got, expected = filled_on_device(shape, dtype, fill), in_place(shape, dtype, fill)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype) == (shape, dtype)
    assert np.array(got).tobytes() == np.array(expected).tobytes()
    if dtype == mx.uint16:  # as bf16 travels
        bits = got.view(mx.bfloat16).view(mx.uint16)
        assert np.array(bits).tobytes() == np.array(expected).tobytes()


def open_files() -> int:
    """How many this process has, where that can be known."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.mark.parametrize("memory_files", [True, False])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 7), (70000,)], ids=str)
def test_numbers_are_sent_as_they_were(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], memory_files: bool
) -> None:
    """Not as they are when MLX comes to copy them; and no file stays open."""
    if not memory_files:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    numbers = np.arange(np.prod(shape), dtype=np.int32).reshape(shape) - 5
    expected, before = numbers.copy(), open_files()
    arrays = []
    for _ in range(50):
        arrays.append(sent(numbers))
        numbers += 1
    for i, array in enumerate(arrays):
        assert (array.shape, array.dtype) == (shape, mx.int32)
        assert (np.array(array) == expected + i).all()
    arrays.clear()
    end = time.monotonic() + 10  # a thread of MLX's may hold the last one still
    while open_files() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert open_files() == before


def test_the_whole_array_is_filled_once() -> None:
    calls: list[Put] = []

    def count(put: Put) -> None:
        calls.append(put)
        put(0, np.full(300 * 7000, 3, np.float16))

    array = filled_on_device((300, 7000), mx.float16, count)
    assert len(calls) == 1
    assert mx.all(array == 3).item()


@pytest.mark.parametrize("error", [WeightsError("x.gguf: tensor 'a' is bad"), KeyboardInterrupt(), SystemExit(3)])
def test_what_fill_raises_is_raised(error: BaseException) -> None:
    def fail(put: Put) -> None:
        put(0, np.zeros(64, np.float32))
        raise error

    with pytest.raises(type(error)) as caught:
        filled_on_device((64, 3), mx.float32, fail)
    assert caught.value is error
    assert filled_on_device((2,), mx.uint8, lambda put: put(0, np.full(2, 7, np.uint8))).tolist() == [7, 7], (
        "MLX goes on"
    )


@pytest.mark.parametrize(("pieces", "message"), [(2, "reads 8 bytes at 8 of a weight of 16"), (0, "did not read")])
def test_reading_in_pieces_is_refused(monkeypatch: pytest.MonkeyPatch, pieces: int, message: str) -> None:
    """MLX may change how it reads streams: no array may then look as if it had been filled."""

    def load(stream: device_array._ArrayStream, format: str) -> mx.array:
        stream.readinto(memoryview(bytearray(len(stream._header))))
        for _ in range(pieces):
            assert stream.readinto(memoryview(bytearray(8))) == 8
        return mx.zeros((4,))

    monkeypatch.setattr(mx, "load", load)
    with pytest.raises(HostError, match=message):
        filled_on_device((4,), mx.float32, filling(16))


def test_weights_of_host_cuda_are_made_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    use_driver(monkeypatch)

    def make(shape: tuple[int, ...], dtype: mx.Dtype, fill: Fill, writer: Callable[[], CardWriter | None]) -> mx.array:
        assert writer() is writer() is not None
        made.append(shape)
        return in_place(shape, dtype, fill)

    monkeypatch.setattr(cuda_host, "filled_on_device", make)
    artifact = compile_spec(storyteller_spec()).artifact
    arrays = CudaHost.read_arrays(artifact, open_weights(Q8_0))
    assert len(made) == len(arrays) == len(artifact.plan.weights)


@pytest.mark.skipif(has_cuda(), reason="the card's memory is not the CPU's")
def test_the_driver_copies_large_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX copies the small ones."""
    use_driver(monkeypatch)
    written: list[int] = []

    class Writer(CardWriter):
        def write(self, address: int, numbers: npt.NDArray[Any]) -> None:
            written.append(numbers.nbytes)
            super().write(address, numbers)

    def places(arrays: Sequence[mx.array]) -> list[int]:
        mx.eval(*arrays)
        return [np.array(array, copy=False).ctypes.data for array in arrays]

    monkeypatch.setattr(device_array, "address_table", places)
    monkeypatch.setattr(device_array, "is_on_card", lambda _: True)
    writer = Writer()
    for shape in ((300, 1000), (3, 10)):
        got = filled_on_device(shape, mx.float32, filling(prod(shape) * 4), lambda: writer)
        assert np.array(got).tobytes() == np.array(in_place(shape, mx.float32, filling(prod(shape) * 4))).tobytes()
    assert sum(written) == 300 * 1000 * 4
