"""Chooses a host by name."""

from collections.abc import Callable, Mapping

import mlx.core as mx

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError
from mlxr.runtime.arena import Arena
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.hosts.names import HOSTS


def resolve_host(name: str) -> str:
    """A host's name, `auto` resolved: metal where there is one, else sim.

    Raises:
        HostError: there is no host of that name.
    """
    if name == "auto":
        return "metal" if mx.metal.is_available() else "sim"
    if name not in HOSTS:
        raise HostError(f"there is no host {name!r}; hosts are auto, {', '.join(HOSTS)}")
    return name


def check_host(name: str) -> None:
    """Finds out, before anything is loaded, whether a host can run here.

    Raises:
        HostError: it cannot, or there is none of that name.
    """
    name = resolve_host(name)
    if name == "metal" and not mx.metal.is_available():
        raise HostError("host metal needs an Apple silicon Mac; use --host sim or --host reference here")
    if name == "sim":
        from mlxr.runtime.hosts.sim.toolchain import find_toolchain  # noqa: PLC0415 (only where it is used)

        find_toolchain()


def make_host(
    name: str,
    artifact: Artifact,
    weights: Mapping[str, mx.array],
    arena: Arena,
    progress: Callable[[int, int], None] | None = None,
) -> Host:
    """The host of that name, ready to run.

    Args:
        name: `auto` or one of HOSTS.
        artifact: the compiled model.
        weights: packed weights.
        arena: the KV arena.
        progress: called with (kernels ready, kernels in all) by hosts that compile them beforehand.

    Raises:
        HostError: there is no such host, this machine cannot run it, or a kernel cannot be built.
    """
    name = resolve_host(name)
    if name == "metal":
        from mlxr.runtime.hosts.metal import MetalHost  # noqa: PLC0415 (only where there is a GPU)

        return MetalHost(artifact, weights, arena)
    if name == "sim":
        from mlxr.runtime.hosts.sim_host import SimHost  # noqa: PLC0415 (needs a compiler)

        return SimHost(artifact, weights, arena, progress)
    from mlxr.runtime.hosts.reference import ReferenceHost  # noqa: PLC0415

    return ReferenceHost(artifact, weights, arena)
