"""Host reference: the graph of the spec as MLX ops, which the other hosts are compared with."""

from typing import TYPE_CHECKING

from mlxr.runtime.hosts.entry import HostEntry

if TYPE_CHECKING:
    from mlxr.runtime.hosts.host import Host


def _load() -> "type[Host]":
    from mlxr.runtime.hosts.reference.host import ReferenceHost  # noqa: PLC0415 (imported when wanted)

    return ReferenceHost


HOST = HostEntry(name="reference", summary="MLX ops", target=None, load=_load, preference=50)
