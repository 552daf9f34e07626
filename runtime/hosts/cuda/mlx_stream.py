"""The CUDA stream on which MLX launches what this thread computes.

MLX's Python says which stream is the default, and not what its handle is. Its C++ does, for extensions: `Stream` and
`CommandEncoder` are part of its API (mlx/stream.h, mlx/backend/cuda/device.h), and an encoder's stream follows the
reference to its device. That is a matter of MLX's build, so it holds for versions that were tried; others have none.
"""

import ctypes
import functools
import re
import threading
from pathlib import Path

import mlx
import mlx.core as mx

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.driver import call

_TRIED = ("0.32.4",)
_GET_ENCODER = "_ZN3mlx4core2cu19get_command_encoderENS0_6StreamE"
_HANDLE_AT = 8  # bytes of a CommandEncoder before its stream
_GPU = 1  # of MLX's DeviceType

_of_thread = threading.local()


class _Stream(ctypes.Structure):
    _fields_ = (("index", ctypes.c_int), ("device_type", ctypes.c_int), ("device_index", ctypes.c_int))


def mlx_stream() -> int | None:
    """The handle of the default stream of this thread, on which it has computed something; None: it is not known."""
    if not hasattr(_of_thread, "handle"):
        _of_thread.handle = _find()
    handle: int | None = _of_thread.handle
    return handle


def why_unknown() -> str | None:
    """Why no thread's stream is known, for people; None: MLX is of a version that was tried."""
    if _library() is not None:
        return None
    return f"MLX is {getattr(mx, '__version__', 'of an unknown version')}, and its streams are known of {_TRIED[0]}"


def _find() -> int | None:
    library = _library()
    if library is None:
        return None
    named = re.fullmatch(r"Stream\(Device\(gpu, (\d+)\), (\d+)\)", repr(mx.default_stream(mx.Device(mx.gpu))))
    if named is None:
        return None
    mx.eval(mx.zeros((8,), mx.uint32) | 1)  # there is no encoder before the first launch
    get_encoder = library[_GET_ENCODER]
    get_encoder.restype, get_encoder.argtypes = ctypes.c_void_p, (_Stream,)
    encoder = get_encoder(_Stream(int(named[2]), _GPU, int(named[1])))
    handle = ctypes.c_void_p.from_address(encoder + _HANDLE_AT).value
    try:
        call("cuStreamGetFlags", ctypes.c_void_p(handle), ctypes.byref(ctypes.c_uint()))
    except HostError:
        return None
    return handle


@functools.cache
def _library() -> ctypes.CDLL | None:
    """MLX's C++ library, which is loaded; None if it is of a version that was not tried."""
    if getattr(mx, "__version__", "") not in _TRIED:
        return None
    for folder in mlx.__path__:
        path = Path(folder) / "lib" / "libmlx.so"
        if path.exists():
            library = ctypes.CDLL(str(path))
            return library if hasattr(library, _GET_ENCODER) else None
    return None
