"""Memory that products want cleared, by kernels of a graph in place of nodes of the driver.

Some of cuBLASLt's kernels share their work by a counter, which the library has cleared before. In a graph that takes
6 us between two kernels, where less than one passes else (H200), and the driver takes longer to start all of it. A norm
before such a product clears the counter beside its own work; elsewhere a kernel does that alone.
"""

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

from mlxr.runtime.hosts.cuda.driver import call

CLEAR = "mlxr_clear"
"""The kernel; see templates/hosts/recorded_on_cuda.cuh."""
_KERNEL, _MEMSET = 0, 2  # CU_GRAPH_NODE_TYPE_KERNEL, _MEMSET
_THREADS, _MOST_BLOCKS = 256, 128
_WORD = 4

_pointer = ctypes.c_void_p


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", _pointer),
        *((name, ctypes.c_uint) for name in ("x", "y", "z", "threads", "threads_y", "threads_z", "shared_bytes")),
        *((name, _pointer) for name in ("arguments", "extra", "kernel", "context")),
    )


class _Memset(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element_bytes", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class Clearing(NamedTuple):
    """What clears memory, as the driver launches it.

    Attributes:
        function: `CLEAR`.
        norms: kernels whose last argument is the address of a word that they clear, or 0: how many arguments they have.
    """

    function: int
    norms: Mapping[int, int]


def clear_by_kernels(graph: _pointer, clearing: Clearing) -> None:
    """Replaces the nodes of a graph that clear whole words in a row; others stay.

    Args:
        graph: not instantiated yet.
        clearing: by what.

    Raises:
        HostError: the driver refuses.
    """
    for node in _some("cuGraphGetNodes", graph):
        kind, found = ctypes.c_int(), _Memset()
        call("cuGraphNodeGetType", node, ctypes.byref(kind))
        if kind.value != _MEMSET:
            continue
        call("cuGraphMemsetNodeGetParams", node, ctypes.byref(found))
        size = found.width * found.element_bytes
        if found.value or found.height > 1 or not size or size % _WORD or found.address % _WORD:
            continue
        before, after = _some("cuGraphNodeGetDependencies", node), _some("cuGraphNodeGetDependentNodes", node)
        call("cuGraphDestroyNode", node)
        if len(before) == 1 and size == _WORD and _is_given(before[0], found.address, clearing.norms):
            (added,) = before
        else:
            added = _add(graph, clearing.function, found.address, size // _WORD, before)
        for one in after:
            call("cuGraphAddDependencies", graph, ctypes.byref(added), ctypes.byref(one), ctypes.c_size_t(1))


def _is_given(node: _pointer, address: int, norms: Mapping[int, int]) -> bool:
    """Gives a kernel the word that it is to clear, if it can and has none yet; whether it was given."""
    kind, found = ctypes.c_int(), KernelNode()
    call("cuGraphNodeGetType", node, ctypes.byref(kind))
    if kind.value != _KERNEL:
        return False
    call("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(found))
    count = norms.get(found.function or 0)
    if count is None:
        return False
    places = (_pointer * count).from_address(found.arguments)
    values = (ctypes.c_uint64 * count)(*(ctypes.c_uint64.from_address(place).value for place in places if place))
    if values[-1]:
        return False
    values[-1], first = address, ctypes.addressof(values)
    own = (_pointer * count)(*range(first, first + 8 * count, 8))
    found.arguments = ctypes.addressof(own)
    call("cuGraphKernelNodeSetParams_v2", node, ctypes.byref(found))
    return True


def _add(graph: _pointer, function: int, address: int, words: int, before: list[_pointer]) -> _pointer:
    values = (ctypes.c_uint64 * 2)(address, words)
    first = ctypes.addressof(values)
    places = (_pointer * 2)(first, first + 8)
    blocks = min(_MOST_BLOCKS, -(-words // _THREADS))
    node = KernelNode(function, blocks, 1, 1, _THREADS, 1, 1, 0, ctypes.addressof(places), None, None, None)
    added, after = _pointer(), (_pointer * len(before))(*before)
    number = ctypes.c_size_t(len(before))
    call("cuGraphAddKernelNode_v2", ctypes.byref(added), graph, after, number, ctypes.byref(node))
    return added


def _some(function: str, of: _pointer) -> list[_pointer]:
    """The nodes that a function of the driver gives."""
    count = ctypes.c_size_t()
    call(function, of, None, ctypes.byref(count))
    nodes: Any = (_pointer * count.value)()
    if count.value:
        call(function, of, nodes, ctypes.byref(count))
    return [_pointer(node) for node in nodes]
