"""Whether NVIDIA's compiler is installed; it needs no card."""

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda import nvrtc


def has_nvrtc() -> bool:
    """Whether CUDA texts can be compiled here."""
    try:
        nvrtc.find_nvrtc()
        nvrtc.find_headers()
    except HostError:
        return False
    return True
