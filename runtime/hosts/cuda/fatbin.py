"""Compresses kernel images with nvFatbin, because MLX hashes the whole image at each launch of a kernel.

The library is in the wheel nvidia-nvfatbin and in CUDA toolkits. Without it, images are not compressed.
"""

import ctypes
import functools

from mlxr.runtime.hosts.cuda.nvrtc import roots

_SONAMES = ("libnvfatbin.so.13", "libnvfatbin.so.12")
_OPTIONS = (b"-64", b"-cuda", b"-compress-all", b"-compress-mode=size")


@functools.cache
def find_nvfatbin() -> ctypes.CDLL | None:
    """The library; None if there is none."""
    places = [*_SONAMES, *(str(path) for root in roots() for path in sorted(root.glob("lib*/libnvfatbin.so.1[0-9]")))]
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    return None


def compressed(cubin: bytes, architecture: str) -> bytes:
    """A smaller image that the driver loads like the cubin; the cubin itself if it cannot be compressed.

    Args:
        cubin: machine code for one architecture.
        architecture: that architecture (`sm_90a`).
    """
    library, handle = find_nvfatbin(), ctypes.c_void_p()
    if library is None:
        return cubin
    if library.nvFatbinCreate(ctypes.byref(handle), (ctypes.c_char_p * len(_OPTIONS))(*_OPTIONS), len(_OPTIONS)):
        return cubin
    try:
        name = architecture.removeprefix("sm_").encode()
        if library.nvFatbinAddCubin(handle, cubin, ctypes.c_size_t(len(cubin)), name, b"kernel"):
            return cubin
        size = ctypes.c_size_t()
        if library.nvFatbinSize(handle, ctypes.byref(size)):
            return cubin
        buffer = ctypes.create_string_buffer(size.value)
        if library.nvFatbinGet(handle, buffer):
            return cubin
        return min(cubin, buffer.raw, key=len)
    finally:
        library.nvFatbinDestroy(ctypes.byref(handle))
