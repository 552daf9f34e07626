"""Quantises numbers to GGUF's block formats, with the bits that llama.cpp's own quantiser gives.

A C library does it, whose text is in templates/quantise. It is compiled once, by the compiler of host cpu, without
products that are fused with additions.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

import mlxr.templates
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.hosts.cpu.build import load_library
from mlxr.runtime.machine.threads import num_threads

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

BLOCK_FORMATS = frozenset(
    ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4")
)
"""The formats of blocks that can be written."""
_FILES = ("numbers.h", "search.h", "blocks_of_32.h", "blocks_of_256.h", "rows.c")
_FLAGS = ("-ffp-contract=off",)
_ROWS_AT_ONCE = 64


@cache
def block_sizes(format: str) -> tuple[int, int]:
    """Elements and bytes of a block of a GGUF type, by its name in small letters."""
    elements, size_bytes = GGML_QUANT_SIZES[type_number(format)]
    return elements, size_bytes


def type_number(format: str) -> GGMLQuantizationType:
    """The number by which GGUF files name a type."""
    return GGMLQuantizationType[format.upper()]


def quantise_rows(numbers: Floats, format: str, importance: Floats | None = None, threads: int | None = None) -> Bytes:
    """Quantises rows, each by itself.

    Args:
        numbers: [rows, columns], finite; columns are whole blocks.
        format: one of `BLOCK_FORMATS`.
        importance: [columns]: how much an error in each column counts; None: all the same.
        threads: how many work; None: one for each core that this process may use.

    Returns:
        [rows, bytes of a row].

    Raises:
        HostError: there is no C compiler.
        WeightsError: a number is not finite.
    """
    function, number = _library(), int(type_number(format))
    elements, block_bytes = block_sizes(format)
    rows, columns = numbers.shape
    assert format in BLOCK_FORMATS and columns % elements == 0, f"{format} has no rows of {columns} columns"
    if not np.isfinite(numbers).all():
        raise WeightsError("it has numbers that are infinite or none (NaN), which no quantised format has")
    numbers = np.ascontiguousarray(numbers, np.float32)
    assert numbers.ndim == 2, "rows of columns"
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
    assert weights is None or weights.shape == (columns,), "one weight for each column"
    out = np.empty((rows, columns // elements * block_bytes), np.uint8)

    def work(first: int) -> None:
        count = min(_ROWS_AT_ONCE, rows - first)
        address = None if weights is None else weights.ctypes.data
        known = function(number, numbers[first:].ctypes.data, out[first:].ctypes.data, count, columns, address)
        assert known, f"the library has {format}"

    with ThreadPoolExecutor(num_threads(threads)) as pool:
        list(pool.map(work, range(0, rows, _ROWS_AT_ONCE)))
    return out


@cache
def _library() -> Callable[..., Any]:
    folder = Path(mlxr.templates.__file__).parent / "quantise"
    text = "\n".join((folder / name).read_text("utf-8") for name in _FILES)
    function = load_library(text, "quantise", flags=_FLAGS).mlxr_quantise
    pointer = ctypes.c_void_p
    function.restype = ctypes.c_int
    function.argtypes = (ctypes.c_int, pointer, pointer, ctypes.c_int64, ctypes.c_int64, pointer)
    typed: Callable[..., Any] = function
    return typed
