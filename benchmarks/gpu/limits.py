"""The device's limits, measured between everything else: copying memory, and multiplying bf16 matrices."""

import ctypes
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlxr.runtime.hosts.cuda import driver
from mlxr.runtime.hosts.cuda.device import has_cuda

_CHAIN = 8


class Limits:
    """The two limits. Their arrays are allocated anew each time, so that they take no memory from models."""

    def __init__(self, copy_bytes: int = 1 << 30, matrix: int = 8192) -> None:
        """Measures nothing yet.

        Args:
            copy_bytes: bytes of the array that is copied: many times what caches hold.
            matrix: rows and columns of the matrices.
        """
        self._copy_bytes, self._matrix = copy_bytes, matrix

    def copy_bytes_per_second(self) -> float:
        """Bytes read and written per second.

        On NVIDIA cards by the driver's own copies, which are 10 % faster than a kernel that reads one array and
        writes one, and than a chain of such kernels that is started and awaited for 4 ms; elsewhere by such a chain.
        """
        if has_cuda():
            return _driver_copies(self._copy_bytes)
        bits = mx.random.normal((self._copy_bytes // 4,)).view(mx.uint32)
        mx.eval(bits)
        seconds = _seconds(lambda: _chain(mx.bitwise_invert, bits))
        mx.clear_cache()
        return 2 * self._copy_bytes * _CHAIN / seconds

    def operations_per_second(self) -> float:
        """Operations per second of products of square bf16 matrices with random numbers."""
        a, b = (mx.random.normal((self._matrix, self._matrix)).astype(mx.bfloat16) for _ in range(2))
        b = b / self._matrix**0.5
        mx.eval(a, b)
        seconds = _seconds(lambda: _chain(lambda x: x @ b, a))
        mx.clear_cache()
        return 2 * self._matrix**3 * _CHAIN / seconds


def _driver_copies(size: int) -> float:
    first, second = ctypes.c_uint64(), ctypes.c_uint64()
    with driver.in_context():
        driver.call("cuMemAlloc_v2", ctypes.byref(first), ctypes.c_size_t(size))
        driver.call("cuMemAlloc_v2", ctypes.byref(second), ctypes.c_size_t(size))

        def seconds(copies: int) -> float:
            driver.call("cuCtxSynchronize")
            start = time.perf_counter()
            for _ in range(copies):
                driver.call("cuMemcpyDtoD_v2", second, first, ctypes.c_size_t(size))
            driver.call("cuCtxSynchronize")
            return time.perf_counter() - start

        few, many = (min([seconds(copies) for _ in range(4)][1:]) for copies in (_CHAIN, 5 * _CHAIN))
        driver.call("cuMemFree_v2", first)
        driver.call("cuMemFree_v2", second)
    return 2 * size * 4 * _CHAIN / (many - few)


def _chain(make: Callable[[mx.array], mx.array], array: mx.array) -> mx.array:
    for _ in range(_CHAIN):
        array = make(array)
    return array


def _seconds(make: Callable[[], Any]) -> float:
    """The best of three runs, after one that does not count."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        mx.eval(make())
        mx.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
