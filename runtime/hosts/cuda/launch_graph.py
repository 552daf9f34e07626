"""Launches of kernels as a CUDA graph, which one call of the driver starts."""

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.cleared_memory import Clearing, KernelNode, clear_by_kernels
from mlxr.runtime.hosts.cuda.driver import MOST_SHARED_BYTES, call, has, in_context, is_done
from mlxr.runtime.hosts.cuda.matrix_library import ProductLaunch, matrix_library

_pointer = ctypes.c_void_p
_SLEEPING_WITHOUT_TIME = 3  # CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
_NON_BLOCKING, _RELAXED = 1, 2  # CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED
_CLUSTER = (11, 12, 13)  # CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, _HEIGHT, _DEPTH
_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
_lost: list[Any] = []  # what may still be read, since nobody could wait for the end


class Functions:
    """Kernels as the driver launches them, each loaded when it is first asked for. They stay as long as the process.

    There is one for all hosts, so a model that is loaded again takes no more of the card's memory.
    """

    def __init__(self) -> None:
        """Loads nothing."""
        self._loaded: dict[tuple[str, bytes, int, int], int] = {}
        self._lock = threading.Lock()

    def of(self, name: str, image: bytes, pool: int = 0, cluster: int = 1) -> int:
        """The driver's handle of a kernel, in MLX's context.

        Args:
            name: its name in the image.
            image: a cubin or a fat binary.
            pool: shared memory that a launch asks for.
            cluster: neighbouring threadgroups that run as one. It is no part of the image: MLX's own graphs, which it
                updates to other kernels, do not see an image's clusters, and would run these kernels in them.

        Raises:
            HostError: the driver rejects the image.
        """
        key = (name, image, pool, cluster)
        with self._lock:
            if key not in self._loaded:
                module, function = _pointer(), _pointer()
                with in_context():
                    call("cuModuleLoadData", ctypes.byref(module), image)
                    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
                    if pool:
                        call("cuFuncSetAttribute", function, MOST_SHARED_BYTES, pool)
                    for attribute, size in zip(_CLUSTER, (cluster, 1, 1) if cluster > 1 else (), strict=False):
                        call("cuFuncSetAttribute", function, attribute, size)
                assert function.value is not None, "the driver has found it"
                self._loaded[key] = function.value
            return self._loaded[key]


FUNCTIONS = Functions()
"""Of this process."""


class Event:
    """A mark in what a stream has been given. Who waits for it sleeps."""

    def __init__(self) -> None:
        """Makes one that is nowhere yet.

        Raises:
            HostError: the driver refuses.
        """
        self._handle, self._times, self._ended = _pointer(), 0, 0
        with in_context():
            call("cuEventCreate", ctypes.byref(self._handle), _SLEEPING_WITHOUT_TIME)
        weakref.finalize(self, _destroy_event, self._handle).atexit = False

    def record(self, stream: int) -> None:
        """Puts it after all that a stream has been given.

        Raises:
            HostError: the driver refuses.
        """
        self._times += 1
        call("cuEventRecord", self._handle, _pointer(stream))
        self._times += 1  # another thread may have waited in between, for what was recorded before

    @property
    def has_ended(self) -> bool:
        """Whether all before it has ended; nobody waits.

        Raises:
            HostError: something on the GPU has failed.
        """
        return is_done("cuEventQuery", self._handle)

    def wait(self) -> None:
        """Waits until all before it has ended.

        Raises:
            HostError: something on the GPU has failed.
        """
        times = self._times  # another thread may record it again meanwhile
        if times != self._ended:  # a call of the driver takes some microseconds of a step
            call("cuEventSynchronize", self._handle)
            self._ended = times


@functools.cache
def overlap() -> bool:
    """Whether launches of a graph can overlap on this card: kernels are compiled to wait by themselves (build.py).

    Raises:
        HostError: there is no driver.
    """
    major = ctypes.c_int()
    with in_context() as device:
        call("cuDeviceGetAttribute", ctypes.byref(major), _MAJOR, device)
    return major.value >= 9 and has("cuGraphAddDependencies_v2")


class GraphLaunch(NamedTuple):
    """A launch of a graph.

    Attributes:
        function: the kernel.
        grid: its threadgroups.
        threads: of a threadgroup.
        addresses: its arguments, of 8 bytes each: pointers and whole numbers.
        pool: shared memory that it asks for.
        waits: whether the kernel itself waits for the launch before, so that it may begin while that one runs.
    """

    function: int
    grid: tuple[int, int, int]
    threads: int
    addresses: Sequence[int]
    pool: int = 0
    waits: bool = False


class _Edge(ctypes.Structure):
    """CUgraphEdgeData: the launch after may begin once all threadgroups of this one have let it, or have ended."""

    _fields_ = (
        *((name, ctypes.c_ubyte) for name in ("from_port", "to_port", "type")),
        ("reserved", ctypes.c_ubyte * 5),
    )


_OVERLAPS = _Edge(1, 0, 1)  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC


class LaunchGraph:
    """Launches in order. Each begins when the one before has ended, or, if it waits by itself, somewhat earlier."""

    def __init__(
        self, launches: Sequence[GraphLaunch | ProductLaunch], kept: list[Any], clearing: Clearing | None = None
    ) -> None:
        """Records them.

        Args:
            launches: in order.
            kept: what the addresses are of. It is kept until the graph is gone and its last launch has ended.
            clearing: what clears memory for products in place of the driver, see cleared_memory.py; None: nothing.

        Raises:
            HostError: the driver refuses.
        """
        graph, self._ready, self._ends = _pointer(), _pointer(), list[Event]()
        with in_context():
            try:
                _make(graph, launches, clearing)
                call("cuGraphInstantiateWithFlags", ctypes.byref(self._ready), graph, ctypes.c_ulonglong(0))
            finally:
                if graph:
                    call("cuGraphDestroy", graph)
        weakref.finalize(self, _destroy, self._ready, kept, self._ends).atexit = False

    def upload(self, stream: int) -> None:
        """Brings the graph to the card, which the first launch does otherwise.

        Raises:
            HostError: the driver refuses.
        """
        with in_context():
            call("cuGraphUpload", self._ready, _pointer(stream))

    def launch(self, stream: int, end: Event) -> None:
        """Starts the launches after all that a stream has been given.

        Args:
            stream: where.
            end: what the caller records there next, also if the driver refuses.

        Raises:
            HostError: the driver refuses, also if a launch before has failed.
        """
        self._ends[:] = [end]
        call("cuGraphLaunch", self._ready, _pointer(stream))


def _make(graph: _pointer, launches: Sequence[GraphLaunch | ProductLaunch], clearing: Clearing | None) -> None:
    """Makes a graph: of kernels alone node by node, else of what a stream is given."""
    kernels = [launch for launch in launches if isinstance(launch, GraphLaunch)]
    if len(kernels) < len(launches):
        _capture(graph, launches)
        if clearing is not None:
            clear_by_kernels(graph, clearing)
        return
    call("cuGraphCreate", ctypes.byref(graph), 0)
    node: _pointer | None = None
    for launch in kernels:
        node = _add(graph, launch, node)


def _capture(graph: _pointer, launches: Sequence[GraphLaunch | ProductLaunch]) -> None:
    """Makes a graph of what a stream of its own is given."""
    library, stream = matrix_library(), _pointer()
    call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
    try:
        library.prepare([launch for launch in launches if isinstance(launch, ProductLaunch)], stream)
        call("cuStreamBeginCapture_v2", stream, _RELAXED)
        try:
            for launch in launches:
                if isinstance(launch, ProductLaunch):
                    library.multiply(launch, stream)
                    continue
                _values, places = _arguments(launch)
                sizes = (*launch.grid, launch.threads, 1, 1, launch.pool)
                call("cuLaunchKernel", _pointer(launch.function), *sizes, stream, places, None)
        finally:
            call("cuStreamEndCapture", stream, ctypes.byref(graph))
    finally:
        call("cuStreamDestroy_v2", stream)


def _arguments(launch: GraphLaunch) -> tuple[Any, Any]:
    """A launch's arguments, and where each of them is."""
    values = (ctypes.c_uint64 * len(launch.addresses))(*launch.addresses)
    first = ctypes.addressof(values)
    return values, (_pointer * len(values))(*range(first, first + 8 * len(values), 8))


def _add(graph: _pointer, launch: GraphLaunch, before: _pointer | None) -> _pointer:
    _values, places = _arguments(launch)
    sizes = (*launch.grid, launch.threads, 1, 1, launch.pool)
    node = KernelNode(launch.function, *sizes, ctypes.addressof(places), None, None, None)
    added, other = _pointer(), before if launch.waits else None
    after = (_pointer * 1)(before) if before is not None and other is None else None
    number = ctypes.c_size_t(after is not None)
    call("cuGraphAddKernelNode_v2", ctypes.byref(added), graph, after, number, ctypes.byref(node))
    if other is not None:
        ends = ctypes.byref(other), ctypes.byref(added), ctypes.byref(_OVERLAPS)
        call("cuGraphAddDependencies_v2", graph, *ends, ctypes.c_size_t(1))
    return added


def let_go(kept: list[Any], waits: Sequence[Callable[[], object]]) -> bool:
    """Lets go of what is read until the last steps have ended: MLX does not know that it is read.

    To wait for the whole context instead would spoil what MLX captures in another thread.

    Args:
        kept: it is cleared. If a wait fails, it is kept as long as the process.
        waits: for the last steps that read it.

    Returns:
        Whether they have ended.
    """
    try:
        with in_context():
            for wait in waits:
                wait()
    except (HostError, RuntimeError, ValueError):
        _lost.append([*kept])
        return False
    kept.clear()
    return True


def _destroy(graph: _pointer, kept: list[Any], ends: list[Event]) -> None:
    if let_go(kept, [end.wait for end in ends]):
        with suppress(HostError), in_context():
            call("cuGraphExecDestroy", graph)


def _destroy_event(event: _pointer) -> None:
    with suppress(HostError), in_context():
        call("cuEventDestroy_v2", event)
