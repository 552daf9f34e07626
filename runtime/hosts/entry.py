"""What is known about a host before it is loaded: the record that each host's package exports as `HOST`.

Records are light. They import neither MLX nor their host's module until somebody calls `check`, `load` or `gpu_name`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mlxr.compiler.artifact import Artifact, KernelEntry, Program
    from mlxr.runtime.hosts.host import Host


def _begin_nothing(*_: object) -> None:
    pass


class BeginBuild(NamedTuple):
    """Begins to build what an artifact will have.

    Attributes:
        program: a program, from its sources, by file, for the model of this name.
        kernel: a kernel of the program, from its file, before there is the program.
    """

    program: "Callable[[Program, Mapping[str, str], str], None]" = _begin_nothing
    kernel: "Callable[[KernelEntry, str], None]" = _begin_nothing


@contextmanager
def _nothing_ahead() -> Iterator[BeginBuild]:
    yield BeginBuild()


@dataclass(frozen=True, kw_only=True)
class HostEntry:
    """A host: what users call it, what it runs, whether it can run here, and how to get its class.

    Attributes:
        name: the name that users give; also the name of the host's folder.
        summary: where or how it runs, in a few words, for `--help`.
        target: the target whose program it runs; None: it interprets the graph of any artifact.
        load: imports and returns the host's class.
        check: raises a HostError that says why this machine cannot run the host; returns where it can.
        preference: the host's place in lists, lowest first. Hosts of equal preference are listed by name.
        auto: whether `auto` may choose this host. It takes the first one in the list that can run, else the last one.
        takes_threads: whether the user may choose the number of its threads.
        activations: the only element types of activations that it computes with; empty: any that the spec asks for.
        calls_mlx: whether functions of MLX take the place of kernels there, as the plan says (`LibraryCall`).
        gpu_name: what the GPU calls itself that the launch geometry should suit; empty: no GPU that chips are known of.
        deterministic: whether what is compiled for this host is deterministic, because speed does not matter there.
        prepare: compiles what the host needs of an artifact into its folder of the cache, as far as that can be done
            without weights.
        building_ahead: a context in which a program can be begun to be built from its sources, by file, and the
            model's name, while its artifact is not complete. The host takes what was begun; what it has not taken when
            the context ends is ended.
        leaves_experts: whether it can leave some layers' experts to the CPU beside it.
        cached: what the host keeps in its own folder of the cache, for `mlxr cache`; empty: nothing.
    """

    name: str
    summary: str
    target: str | None
    load: "Callable[[], type[Host]]"
    check: Callable[[], None] = lambda: None
    preference: int = 100
    auto: bool = False
    takes_threads: bool = False
    activations: tuple[str, ...] = ()
    calls_mlx: bool = False
    gpu_name: Callable[[], str] = lambda: ""
    deterministic: bool = False
    prepare: "Callable[[Artifact], None]" = lambda artifact: None
    building_ahead: "Callable[[], AbstractContextManager[BeginBuild]]" = _nothing_ahead
    leaves_experts: bool = False
    cached: str = ""

    def runs(self, targets: Collection[str]) -> bool:
        """Whether the host runs artifacts that have these targets."""
        return self.target is None or self.target in targets

    def target_among(self, targets: Collection[str]) -> str:
        """The target whose types the host computes with: its own, or the first one of an artifact if it has none."""
        return next(iter(targets)) if self.target is None else self.target
