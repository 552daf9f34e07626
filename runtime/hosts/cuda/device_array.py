"""Puts arrays into the GPU's own memory. MLX keeps arrays that the CPU has filled in managed memory instead.

Source: MLX's `load` (mlx/io/load.cpp, mlx/backend/cuda/load.cpp). It reads the header of an .npy stream a few bytes at
a time. When the array is evaluated, it reads the content by one `readinto` to memory of its own, copies it to the
device, and frees that memory before the evaluation ends.
"""

import functools
import io
import os
import traceback
from collections.abc import Callable
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.address_table import address_table
from mlxr.runtime.hosts.cuda.card_writer import CardWriter, is_on_card
from mlxr.runtime.weights.load_weights import Fill, put_into

_NUMPY: dict[mx.Dtype, npt.DTypeLike] = {
    mx.float32: np.float32,
    mx.float16: np.float16,
    mx.uint16: np.uint16,
    mx.uint8: np.uint8,
}

_LARGE_BYTES = 1 << 20
"""Smaller arrays take no time, and MLX may keep them elsewhere."""


def on_device(array: mx.array) -> mx.array:
    """A copy that the GPU writes, and that is therefore in the GPU's own memory and not in managed memory."""
    bits = array.view({1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[array.itemsize])
    copy = (bits | 0).view(array.dtype)
    mx.eval(copy)
    return copy


def filled_on_device(
    shape: tuple[int, ...], dtype: mx.Dtype, fill: Fill, writer: Callable[[], CardWriter | None] = lambda: None
) -> mx.array:
    """An evaluated array in the GPU's own memory; in the CPU's, if MLX has no GPU.

    Args:
        shape: of the array.
        dtype: f32, f16, u16 or u8.
        fill: writes the array, once; on the CPU, a thread of MLX calls it.
        writer: gives what writes large arrays faster; None: MLX copies them when they are filled.

    Raises:
        HostError: MLX did not read the whole stream at once.
        BaseException: whatever `fill` raised.
    """
    if prod(shape) * dtype.size >= _LARGE_BYTES and (own := writer()) is not None:
        return _written(shape, dtype, fill, own)
    stream = _ArrayStream(shape, np.dtype(_NUMPY[dtype]), fill)
    file: Any = stream  # it has the methods of a file that MLX calls; MLX's stub names no file type that exists
    array = mx.load(file, format="npy")
    assert isinstance(array, mx.array), "an .npy stream is one array"
    mx.eval(array)
    if stream.error is not None:
        traceback.clear_frames(stream.error.__traceback__)  # they refer to views of memory that is freed
        raise stream.error
    return array


def _written(shape: tuple[int, ...], dtype: mx.Dtype, fill: Fill, writer: CardWriter) -> mx.array:
    array = mx.zeros(shape, dtype)
    (address,) = np.array(address_table([array])[:1]).tolist()
    if not is_on_card(address):
        array = on_device(array)
        (address,) = np.array(address_table([array])[:1]).tolist()
    try:
        fill(lambda at, numbers: writer.write(address + at, numbers))
    finally:
        writer.wait()  # also when it failed: the array's memory may then belong to somebody else
    return array


def sent(numbers: npt.NDArray[Any]) -> mx.array:
    """A lazy copy of numbers of any shape, as they are now, in the GPU's own memory. Nothing waits for it.

    MLX copies an array that it loads from a file when it evaluates the array. This file is in memory, and MLX has
    opened it when this returns.
    """
    try:
        file = os.memfd_create("mlxr")
    except (AttributeError, OSError):  # not Linux, or not allowed
        return mx.array(numbers) | 0
    try:
        with open(file, "wb", buffering=0, closefd=False) as stream:
            stream.write(_header(numbers.shape, numbers.dtype) + numbers.tobytes())
        array = mx.load(f"/proc/self/fd/{file}", format="npy")
    except (OSError, RuntimeError):  # no files in memory, or no /proc
        return mx.array(numbers) | 0
    finally:
        os.close(file)
    assert isinstance(array, mx.array), "an .npy file is one array"
    return array


@functools.lru_cache(maxsize=256)
def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    header = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)  # MLX knows its fields by their places
    return header.getvalue()


class _ArrayStream:
    """An .npy file as MLX reads one, whose content is written where it is read to.

    Nothing is raised through MLX, which would leave its memory and its stream as they are at that moment: the array's
    content is undefined after an error.

    Attributes:
        error: what kept the content from being written.
        closed: part of what MLX takes for a file.
    """

    closed = False

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], fill: Fill) -> None:
        self._header, self._place = _header(shape, dtype), 0
        self._shape, self._dtype, self._fill = shape, dtype, fill
        self.error: BaseException | None = HostError("cuda: MLX did not read a weight that it was given")

    def tell(self) -> int:
        """The offset at which the next `readinto` begins."""
        return self._place

    def seek(self, offset: int, whence: int = 0) -> int:
        """Moves to an offset from the beginning; MLX needs no other form."""
        assert whence == io.SEEK_SET, "a stream of unread content has no end to count from"
        self._place = offset
        return offset

    def readinto(self, memory: memoryview) -> int:
        """Writes a piece of the header, or the whole content."""
        try:
            size, start = len(memory), self._place
            self._place += size
            if start < len(self._header):
                piece = self._header[start : self._place]
                memory[: len(piece)] = piece
            else:
                self._write(memory, start - len(self._header))
        except BaseException as error:
            self.error = error
        return len(memory)

    def _write(self, memory: memoryview, offset: int) -> None:
        size_bytes = prod(self._shape) * self._dtype.itemsize
        if offset or len(memory) != size_bytes:
            raise HostError(f"cuda: MLX reads {len(memory)} bytes at {offset} of a weight of {size_bytes}, not all")
        self._fill(put_into(np.frombuffer(memory, self._dtype)))
        self.error = None
