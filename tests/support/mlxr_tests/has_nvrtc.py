"""Whether NVIDIA's compiler is here, which needs no card."""

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda import nvrtc


def has_nvrtc() -> bool:
    """Whether texts can be compiled."""
    try:
        nvrtc.find_nvrtc()
        nvrtc.find_headers()
    except HostError:
        return False
    return True
