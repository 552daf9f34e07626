"""Finds NVRTC, NVIDIA's compiler as a library, and its headers, and compiles texts to cubins.

MLX's CUDA build installs both (wheels nvidia-cuda-nvrtc and nvidia-cuda-runtime); a CUDA toolkit has them too. Nothing
here needs a card or a driver.
"""

import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.compilers import COMPILERS

_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
_HOW = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt, or set CUDA_HOME to a CUDA toolkit"


@functools.cache
def find_nvrtc() -> ctypes.CDLL:
    """The library; the one that MLX has loaded, if there is one.

    Raises:
        HostError: there is none.
    """
    places = [*_SONAMES, *(str(path) for root in roots() for path in sorted(root.glob("lib*/libnvrtc.so.1[0-9]")))]
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise HostError(f"cuda: NVRTC, which compiles kernels, is not here; {_HOW}")


@functools.cache
def find_headers() -> Path:
    """The folder of cuda_fp16.h.

    Raises:
        HostError: there is none.
    """
    for root in roots():
        if (root / "include/cuda_fp16.h").is_file():
            return root / "include"
    raise HostError(f"cuda: CUDA's headers (cuda_fp16.h), which kernels include, are not here; {_HOW}")


@functools.cache
def version() -> tuple[int, int]:
    """NVRTC's version.

    Raises:
        HostError: there is no NVRTC.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    find_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compile_cubin(name: str, source: str, flags: tuple[str, ...]) -> bytes:
    """Compiles one text; see `compile_and_tell`."""
    return compile_and_tell(name, source, flags)[0]


def compile_and_tell(name: str, source: str, flags: tuple[str, ...]) -> tuple[bytes, str]:
    """Compiles one text. Several threads may do so at the same time.

    Args:
        name: the kernel's name in errors.
        source: CUDA C++ text.
        flags: flags of NVRTC, including an `sm_` architecture; the folder of headers is added.

    Returns:
        The cubin, and the compiler's messages.

    Raises:
        HostError: there is no NVRTC, or the text does not compile; the message contains the compiler's messages.
    """
    options = (*flags, f"--include-path={find_headers()}")
    status, cubin, messages = COMPILERS.compile(find_nvrtc(), name, source.encode(), options)
    if status:
        raise HostError(f"cuda: kernel {name} does not compile ({_reason(status)}):\n{messages}")
    return cubin, messages


def _reason(status: int) -> str:
    describe = find_nvrtc().nvrtcGetErrorString
    describe.restype = ctypes.c_char_p
    return str(describe(status).decode())


def roots() -> Iterator[Path]:
    """Folders that may have include/ and lib*/: those of wheels, then those of a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for name in ("cu13", "cuda_nvrtc", "cuda_runtime"):
            yield Path(folder) / name
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home)
    yield Path("/usr/local/cuda")
