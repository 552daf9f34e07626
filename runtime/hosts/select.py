"""Chooses a host by name, checks that it can run here, and makes it."""

from collections.abc import Collection
from functools import partial

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.hosts.host import ArrayHost, Host, Progress
from mlxr.runtime.hosts.registry import AUTO, hosts
from mlxr.runtime.machine.threads import num_threads
from mlxr.runtime.weights.weight_file import WeightFile


def resolve_host(name: str, targets: Collection[str] | None = None) -> HostEntry:
    """The host of a name. `auto` is the first host in the list that runs the artifact and can run on this machine.

    Where no host can, `auto` is the last one that it may choose (cpu), whose check then says what is missing.

    Args:
        name: `auto` or the name of a host.
        targets: the targets that the artifact has code for; None: every target.

    Raises:
        HostError: there is no host of that name.
    """
    if name == AUTO:
        *preferred, last = [entry for entry in hosts().values() if entry.auto]
        return next((entry for entry in preferred if _runs(entry, targets) and _can_run(entry)), last)
    if name not in hosts():
        raise HostError(f"there is no host {name!r}; hosts are {', '.join((AUTO, *hosts()))}")
    return hosts()[name]


def check_host(name: str, targets: Collection[str] | None = None, threads: int | None = None) -> HostEntry:
    """The host of a name, once it is certain, before anything is loaded, that it can run here.

    Args:
        name: `auto` or the name of a host.
        targets: the targets that the artifact has code for; None: every target.
        threads: how many threads the user wants; None: the host's own choice.

    Raises:
        HostError: there is no such host, it cannot run here or cannot run the artifact, or it cannot run that many
            threads.
    """
    entry = resolve_host(name, targets)
    if targets is not None and not entry.runs(targets):
        raise HostError(
            f"host {entry.name} needs an artifact with target {entry.target}; this one has {', '.join(targets)}: "
            f"compile the spec with --target {entry.target}" + ("" if name == AUTO else ", or use --host auto")
        )
    entry.check()
    if threads is not None:
        if not entry.takes_threads:
            able = ", ".join(other.name for other in hosts().values() if other.takes_threads)
            raise HostError(f"the number of threads is for host {able}; host {entry.name} takes none")
        num_threads(threads)
    return entry


def make_host(
    name: str,
    artifact: Artifact,
    file: WeightFile,
    arena: Arena,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    lender: Host | None = None,
    resident: int | None = None,
) -> Host:
    """The host of a name, its weights loaded, ready to run.

    Args:
        name: `auto` or the name of a host.
        artifact: the compiled model.
        file: its weights.
        arena: the KV arena.
        threads: how many threads host cpu runs; None: one for each core that this process may use.
        progress: told of the loading.
        lender: a host of the same name whose weights it uses where they are the same; None: it loads all.
        resident: as for `Host.from_file`.

    Raises:
        WeightsError: the weights are corrupt or of another model.
        HostError: there is no such host, this machine cannot run it, or a kernel cannot be built.
    """
    entry = resolve_host(name, artifact.plan.targets)
    make = partial(entry.load().from_file, artifact, file, arena, threads=threads, progress=progress)
    return make(lender=lender, resident=resident)


def array_host(name: str) -> type[ArrayHost]:
    """The class of a host that takes its weights as arrays, for programs that have no file of them.

    Args:
        name: `auto` or the name of a host.

    Raises:
        HostError: there is no such host, or it takes its weights from files only.
    """
    host = resolve_host(name).load()
    if not issubclass(host, ArrayHost):
        raise HostError(f"host {host.name} takes its weights from files only")
    return host


def _can_run(entry: HostEntry) -> bool:
    try:
        entry.check()
    except HostError:
        return False
    return True


def _runs(entry: HostEntry, targets: Collection[str] | None) -> bool:
    return targets is None or entry.runs(targets)
