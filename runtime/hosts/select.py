"""Chooses a host by name."""

from collections.abc import Collection

import mlx.core as mx

from mlxr.compiler.artifact import TARGETS, Artifact, Target
from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.cuda.device import check_cuda, has_cuda
from mlxr.runtime.hosts.host import Host, Progress
from mlxr.runtime.hosts.names import HOSTS
from mlxr.runtime.weights.weight_file import WeightFile

_NEEDS: dict[str, Target] = {"metal": "metal", "cuda": "metal", "sim": "metal", "cpu": "cpu"}


def resolve_host(name: str, targets: Collection[Target] = TARGETS) -> str:
    """A host's name, `auto` resolved: metal or cuda where there is one, else cpu.

    Args:
        name: `auto` or one of HOSTS.
        targets: what the artifact has code for; `auto` chooses among the hosts that run it.

    Raises:
        HostError: there is no host of that name.
    """
    if name == "auto":
        if "metal" not in targets:
            return "cpu"
        return "metal" if mx.metal.is_available() else "cuda" if has_cuda() else "cpu"
    if name not in HOSTS:
        raise HostError(f"there is no host {name!r}; hosts are auto, {', '.join(HOSTS)}")
    return name


def target_of(host: str, targets: Collection[Target]) -> Target:
    """The target whose types a host computes with; of `reference`, the first that the artifact has.

    Args:
        host: a host's name, not `auto`.
        targets: what the artifact has code for.
    """
    return _NEEDS[host] if host in _NEEDS else next(iter(targets))


def check_host(name: str, targets: Collection[Target] = TARGETS, threads: int | None = None) -> None:
    """Finds out, before anything is loaded, whether a host can run here.

    Args:
        name: `auto` or one of HOSTS.
        targets: what the artifact has code for.
        threads: how many threads it shall run.

    Raises:
        HostError: it cannot, there is none of that name, or it cannot run so many threads.
    """
    wanted, name = name, resolve_host(name, targets)
    if name in _NEEDS and _NEEDS[name] not in targets:
        raise HostError(
            f"host {name} needs an artifact with target {_NEEDS[name]}; this one has {', '.join(targets)}: compile the "
            f"spec with --target {_NEEDS[name]}" + ("" if wanted == "auto" else ", or use --host auto")
        )
    if name == "metal" and not mx.metal.is_available():
        raise HostError("host metal needs an Apple silicon Mac; use --host cpu here")
    if name == "cuda":
        check_cuda()
    if threads is not None and name != "cpu":
        raise HostError(f"the number of threads is for host cpu; host {name} takes none")
    if name == "cpu":
        from mlxr.runtime.hosts.cpu.toolchain import find_compilers, no_compiler  # noqa: PLC0415
        from mlxr.runtime.threads import num_threads  # noqa: PLC0415 (only where it is used)

        num_threads(threads)
        if not find_compilers():
            raise no_compiler()
    if name == "sim":
        from mlxr.runtime.hosts.sim.toolchain import find_toolchain  # noqa: PLC0415

        find_toolchain()


def make_host(
    name: str,
    artifact: Artifact,
    file: WeightFile,
    arena: Arena,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Host:
    """The host of that name, its weights loaded, ready to run.

    Args:
        name: `auto` or one of HOSTS.
        artifact: the compiled model.
        file: its weights.
        arena: the KV arena.
        threads: how many threads host cpu runs; None: one for each core that this process may use.
        progress: told of the loading.

    Raises:
        WeightsError: the weights are corrupt or of another model.
        HostError: there is no such host, this machine cannot run it, or a kernel cannot be built.
    """
    return host_class(resolve_host(name, artifact.plan.targets)).from_file(
        artifact, file, arena, threads=threads, progress=progress
    )


def host_class(name: str) -> type[Host]:
    """The class of the host of that name; `auto` is none."""
    # Imported when wanted: each needs what not every machine has.
    if name == "metal":
        from mlxr.runtime.hosts.metal.host import MetalHost  # noqa: PLC0415

        return MetalHost
    if name == "cuda":
        from mlxr.runtime.hosts.cuda.host import CudaHost  # noqa: PLC0415

        return CudaHost
    if name == "cpu":
        from mlxr.runtime.hosts.cpu.host import CpuHost  # noqa: PLC0415

        return CpuHost
    if name == "sim":
        from mlxr.runtime.hosts.sim.host import SimHost  # noqa: PLC0415

        return SimHost
    from mlxr.runtime.hosts.reference.host import ReferenceHost  # noqa: PLC0415

    return ReferenceHost
