"""Calls of NVIDIA's driver, in the context that MLX uses."""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

from mlxr.compiler.errors import HostError

MOST_SHARED_BYTES = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, an attribute of kernels."""
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_SONAMES = ("libcuda.so.1", "libcuda.so")


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the driver.

    Args:
        name: of the function.
        arguments: as ctypes passes them.

    Raises:
        HostError: there is no driver, or the call fails.
    """
    function: Callable[..., int] = getattr(_driver(), name)
    if status := function(*arguments):
        raise HostError(f"cuda: the driver's {name} fails with error {status}")


def is_done(name: str, *arguments: Any) -> bool:
    """Whether that is done which a function of the driver is asked about; see `call`.

    Raises:
        HostError: there is no driver, or the call fails.
    """
    function: Callable[..., int] = getattr(_driver(), name)
    status = function(*arguments)
    if status not in (0, _NOT_READY):
        raise HostError(f"cuda: the driver's {name} fails with error {status}")
    return not status


def has(name: str) -> bool:
    """Whether the driver has a function, which older ones lack.

    Raises:
        HostError: there is no driver.
    """
    return hasattr(_driver(), name)


@contextlib.contextmanager
def in_context(device: int = 0) -> Iterator[ctypes.c_int]:
    """Makes a GPU's primary context, which is MLX's, the current one; gives the driver's number of the GPU.

    Calls in it do not spoil what MLX captures in another thread, except those that wait for the whole context.

    Args:
        device: the GPU's number.

    Raises:
        HostError: there is no driver, or it refuses.
    """
    ordinal, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(ordinal), device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    try:
        call("cuCtxPushCurrent_v2", context)
        mode = ctypes.c_int(_RELAXED)
        try:
            call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            yield ordinal
        finally:
            _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            _driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        _driver().cuDevicePrimaryCtxRelease_v2(ordinal)


@contextlib.contextmanager
def own_stream() -> Iterator[ctypes.c_void_p]:
    """A stream of its own, in the current context; what it was given has ended when this ends.

    To wait for the whole context instead would spoil what MLX captures in another thread.

    Raises:
        HostError: the driver refuses, or what the stream was given fails.
    """
    stream = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
    try:
        yield stream
        call("cuStreamSynchronize", stream)
    finally:
        _driver().cuStreamDestroy_v2(stream)


@functools.cache
def _driver() -> ctypes.CDLL:
    for soname in _SONAMES:
        try:
            return ctypes.CDLL(soname)
        except OSError:
            continue
    raise HostError(f"cuda: the driver's library ({_SONAMES[0]}) cannot be opened")
