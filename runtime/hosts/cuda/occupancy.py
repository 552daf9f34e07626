"""Asks the driver how many blocks of a kernel an NVIDIA GPU runs at once."""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from mlxr.compiler.errors import HostError

_SONAMES = ("libcuda.so.1", "libcuda.so")
_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


class Residency(NamedTuple):
    """The number of a GPU's multiprocessors, and how many blocks of a kernel each of them runs at once."""

    multiprocessors: int
    blocks: int


def residency(name: str, image: bytes, threads: int, device: int = 0) -> Residency:
    """How many blocks of a kernel are on the GPU at once.

    Args:
        name: the kernel's name in the image.
        image: a cubin or a fat binary.
        threads: threads of a block.
        device: the GPU's number.

    Raises:
        HostError: the driver cannot be asked, or rejects the image.
    """
    driver = _find_driver()
    ordinal, context, module, function = (ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p())
    multiprocessors, blocks = ctypes.c_int(), ctypes.c_int()
    _check(driver, "cuInit", 0)
    _check(driver, "cuDeviceGet", ctypes.byref(ordinal), device)
    _check(driver, "cuDeviceGetAttribute", ctypes.byref(multiprocessors), _MULTIPROCESSORS, ordinal)
    # The primary context is the one that MLX uses; it stays as it is.
    _check(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    try:
        _check(driver, "cuCtxPushCurrent_v2", context)
        try:
            _check(driver, "cuModuleLoadData", ctypes.byref(module), image)
            try:
                _check(driver, "cuModuleGetFunction", ctypes.byref(function), module, name.encode())
                _check(
                    driver,
                    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                    ctypes.byref(blocks),
                    function,
                    threads,
                    ctypes.c_size_t(0),
                )
            finally:
                driver.cuModuleUnload(module)
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(ordinal)
    return Residency(multiprocessors.value, blocks.value)


def _find_driver() -> ctypes.CDLL:
    for soname in _SONAMES:
        try:
            return ctypes.CDLL(soname)
        except OSError:
            continue
    raise HostError(f"cuda: the driver's library ({_SONAMES[0]}) cannot be opened")


def _check(driver: ctypes.CDLL, call: str, *arguments: Any) -> None:
    function: Callable[..., int] = getattr(driver, call)
    if status := function(*arguments):
        raise HostError(f"cuda: the driver's {call} fails with error {status}")
