"""Memory that products want cleared, by kernels of a graph in place of nodes of the driver.

Some of cuBLASLt's kernels share their work by counters, which the library has cleared before. In a graph that takes
6 us between two kernels, where less than one passes else (H200), and the driver takes longer to start all of it.
"""

import ctypes
from typing import Any

from mlxr.runtime.hosts.cuda.driver import call

CLEAR = "mlxr_clear"
"""The kernel; see templates/hosts/recorded_on_cuda.cuh."""
_MEMSET = 2  # CU_GRAPH_NODE_TYPE_MEMSET
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


def clear_by_kernels(graph: _pointer, function: int) -> None:
    """Replaces the nodes of a graph that clear whole words in a row; others stay.

    Args:
        graph: not instantiated yet.
        function: `CLEAR`, as the driver launches it.

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
        added = _add(graph, function, found.address, size // _WORD, before)
        for one in after:
            call("cuGraphAddDependencies", graph, ctypes.byref(added), ctypes.byref(one), ctypes.c_size_t(1))


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
