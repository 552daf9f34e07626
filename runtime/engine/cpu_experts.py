"""The CPU's part of a model whose card leaves it some layers' experts: a host of its own, and a thread that runs it.

The thread sleeps until the card's host says that a step will give something (`begin`). What the step is, the card
writes into the memory that both see. So steps are launched without waiting for the CPU, several at once.
"""

import ctypes
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from mlxr.compiler.artifact import Artifact, HandoverLayout
from mlxr.compiler.errors import HostError
from mlxr.runtime.engine.choose_arena import choose_arena
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.hosts.handover import STOP_AT, CLinks, SeenMemory
from mlxr.runtime.hosts.host import Host, Progress
from mlxr.runtime.hosts.registry import hosts
from mlxr.runtime.hosts.select import check_host, make_host
from mlxr.runtime.machine.threads import num_threads
from mlxr.runtime.memory.mmap_choice import Mmap
from mlxr.runtime.weights.weight_file import WeightFile

_HOST = "cpu"
_END_SECONDS = 2.0
"""For how long the end waits for a card that has begun a step."""


def check_leaves_experts(artifact: Artifact, entry: HostEntry) -> None:
    """Refuses a host that computes all experts itself, for a model whose plan leaves some to the CPU.

    Raises:
        HostError: it does.
    """
    if artifact.experts is not None and not entry.leaves_experts:
        able = " or ".join(host.name for host in hosts().values() if host.leaves_experts)
        raise HostError(
            f"{artifact.spec.name} leaves experts to the CPU beside a card (host {able}), and host {entry.name} "
            "computes all of them itself: leave experts_on_cpu out (--experts-on-cpu 0)"
        )


def card_mmap(artifact: Artifact, mmap: Mmap) -> Mmap:
    """What `mmap` means for a model's host: where the CPU has experts, it is about those."""
    return mmap if artifact.experts is None else "auto"


def threads_beside_card(threads: int | None) -> int:
    """How many threads compute experts; None: one for each core but one, which launches the card's work."""
    return max(1, num_threads() - 1) if threads is None else threads


def load_experts(
    artifact: Artifact,
    file: WeightFile,
    *,
    threads: int | None = None,
    mmap: Mmap = "auto",
    progress: Progress | None = None,
) -> "CpuExperts | None":
    """The CPU's part of a model; None: it has none. See `CpuExperts.load`.

    Args:
        artifact: the whole model.
        file: as there.
        threads: as there.
        mmap: as there.
        progress: as there.
    """
    if artifact.experts is None:
        return None
    return CpuExperts.load(artifact.experts, file, threads=threads, mmap=mmap, progress=progress)


def use_experts(host: Host, experts: "CpuExperts | None") -> tuple[str, ...]:
    """Gives the card's host the CPU's part, if there is one; what people should know about that."""
    if experts is None:
        return ()
    host.use_experts(experts)
    return experts.notes


@contextmanager
def resting(experts: "CpuExperts | None") -> Iterator[None]:
    """Within it, the CPU answers without computing: for steps whose results nobody reads, and that end within it."""
    if experts is None:
        yield
        return
    experts.rest(on=True)
    try:
        yield
    finally:
        experts.rest(on=False)


class _Server(Protocol):
    """A host that runs steps which a card begins."""

    launches: Counter[str]

    def serve(self, links: int) -> int:
        """Waits for a step, and runs it and those soon after; how many there were, 0 if nobody waits any more."""

    def close(self) -> None:
        """Frees what it has."""


class CpuExperts:
    """`ExpertsBeside`, on host cpu.

    Attributes:
        notes: what people should know about its memory.
    """

    def __init__(self, server: _Server, notes: tuple[str, ...] = ()) -> None:
        """Takes over a host that is ready to run.

        Args:
            server: the host.
            notes: see above.
        """
        self.notes, self._server = notes, server
        self._wanted = threading.Semaphore(0)
        self._turns = _Turns()
        self._thread = threading.Thread(
            target=_serve, args=(server, self._wanted, self._turns), name="mlxr-experts", daemon=True
        )
        self._ending = weakref.finalize(self, _end, self._wanted, self._turns)

    @classmethod
    def load(
        cls,
        artifact: Artifact,
        file: WeightFile,
        *,
        threads: int | None = None,
        mmap: Mmap = "auto",
        progress: Progress | None = None,
    ) -> "CpuExperts":
        """Loads the experts.

        Args:
            artifact: the CPU's part of a model.
            file: the model's weights.
            threads: how many threads run; None: one for each core but one, which launches the card's work.
            mmap: as for `Model`.
            progress: called as loading proceeds.

        Raises:
            WeightsError: the weights are of another model.
            HostError: there is too little memory, or host cpu cannot run here.
        """
        threads = threads_beside_card(threads)
        entry = check_host(_HOST, artifact.plan.targets, threads)
        chosen = choose_arena(artifact, file, entry, threads=threads, mmap=mmap)
        arena = entry.load().arena_type(chosen.geometry)
        host: Host = make_host(
            _HOST, artifact, file, arena, threads=threads, progress=progress, resident=chosen.resident
        )
        serve = getattr(host, "serve", None)
        assert serve is not None, "host cpu runs the steps of a card"
        return cls(host, chosen.notes)  # type: ignore[arg-type]  # it has `serve`

    @property
    def launches(self) -> Counter[str]:
        """See `Host.launches`, of the CPU's part."""
        return self._server.launches

    def attach(self, memory: SeenMemory, layout: HandoverLayout) -> None:
        """See `ExpertsBeside.attach`."""
        self._turns.links, self._turns.memory = CLinks.to(memory.address, layout), memory
        self._thread.start()

    def begin(self) -> None:
        """See `ExpertsBeside.begin`.

        Raises:
            HostError: the thread has ended.
        """
        if self._turns.failure is not None:
            raise HostError(f"the CPU cannot compute experts: {self._turns.failure}")
        self._wanted.release()

    def reset(self, clear: Callable[[], object]) -> None:
        """See `ExpertsBeside.reset`."""
        turns = self._turns
        turns.stop(1)
        with turns.running:
            _taken(self._wanted)
            turns.begun = 0  # what was begun and has not come never will
            clear()
            assert turns.links is not None, "it is attached"
            turns.links.number = 0
            turns.stop(0)

    def rest(self, *, on: bool) -> None:
        """Whether sums are zeros, which nobody waits for to be computed; once it is attached."""
        assert self._turns.links is not None, "it is attached"
        self._turns.links.rests = int(on)

    def close(self) -> None:
        """Ends the thread, once it has no step to compute, and frees the weights and the memory that both see."""
        self._ending()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)
            self._turns.stop(1)
            self._thread.join()
        memory, self._turns.memory = self._turns.memory, None
        if memory is not None:
            memory.free()
        self._server.close()


class _Turns:
    """What the thread and its owner share.

    Attributes:
        running: held while a step is waited for and computed.
        links, memory: to the memory, and itself.
        begun: steps that were begun and have not come yet; changed while `running` is held.
        ended: whether the thread is to end.
        failure: what ended it; None: nothing did.
    """

    def __init__(self) -> None:
        self.running = threading.Lock()
        self.links: CLinks | None = None
        self.memory: SeenMemory | None = None
        self.begun = 0
        self.ended = False
        self.failure: BaseException | None = None

    def stop(self, how: int) -> None:
        """Has the program wait for nobody (1), or not for long (2), or wait again (0)."""
        if self.memory is not None:
            ctypes.c_uint32.from_address(self.memory.address + STOP_AT).value = how


def _serve(server: _Server, wanted: threading.Semaphore, turns: _Turns) -> None:
    assert turns.links is not None, "it is attached"
    while not turns.ended:
        if turns.begun <= 0:
            wanted.acquire()
            wanted.release()  # counted below, where no reset comes between
        with turns.running:
            turns.begun += _taken(wanted)
            if turns.ended:
                return
            if turns.begun <= 0:
                continue
            try:
                served = server.serve(ctypes.addressof(turns.links))
            except BaseException as error:  # nobody waits for this thread: `begin` tells
                turns.failure = error
                return
            turns.begun += _taken(wanted)
            turns.begun = turns.begun - served if served else 0


def _taken(wanted: threading.Semaphore) -> int:
    """How many steps were begun since it was last asked."""
    count = 0
    while wanted.acquire(blocking=False):
        count += 1
    return count


def _end(wanted: threading.Semaphore, turns: _Turns) -> None:
    turns.ended = True
    turns.stop(2)
    wanted.release()
