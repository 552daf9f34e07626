"""A toy host: runs the program of an existing target, as `sim` does."""

from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.hosts.host import Host


def _load() -> type[Host]:
    from mlxr.runtime.hosts.toy.host import ToyHost

    return ToyHost


HOST = HostEntry(name="toy", summary="a toy", target="metal", load=_load)
