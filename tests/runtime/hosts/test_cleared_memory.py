"""Kernels of graphs that clear memory in place of the driver, with a fake driver."""

import ctypes
from typing import Any

import pytest

from mlxr.runtime.hosts.cuda.cleared_memory import Clearing, clear_by_kernels
from mlxr_tests.fake_driver import use_driver

KERNEL, MEMSET = 0, 2
FUNCTION, NORM, OTHER, GRAPH = 77, 78, 79, ctypes.c_void_p(5)


class FakeGraph:
    """Nodes in a row: what is cleared, as (address, value, bytes of an element, elements, rows), and kernels.

    Attributes:
        given: arguments of kernels that were given others.
        added: arguments and threadgroups of kernels that were added.
    """

    def __init__(self, memsets: dict[int, tuple[int, int, int, int, int]], count: int, norms: set[int]) -> None:
        self.memsets, self.added, self.given = memsets, dict[int, tuple[int, ...]](), dict[int, list[int]]()
        self.norms, self.kept = norms, list[Any]()
        self.after = {number: {number + 1} for number in range(1, count)} | {count: set[int]()}

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802 (the driver's)
        return self._give([*self.after], nodes, count)

    def cuGraphNodeGetDependencies(self, node: Any, nodes: Any, count: Any) -> int:  # noqa: N802
        return self._give([one for one, after in self.after.items() if node.value in after], nodes, count)

    def cuGraphNodeGetDependentNodes(self, node: Any, nodes: Any, count: Any) -> int:  # noqa: N802
        return self._give([*self.after[node.value]], nodes, count)

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:  # noqa: N802
        kind._obj.value = MEMSET if node.value in self.memsets else KERNEL
        return 0

    def cuGraphMemsetNodeGetParams(self, node: Any, found: Any) -> int:  # noqa: N802
        into = found._obj
        into.address, into.value, into.element_bytes, into.width, into.height = self.memsets[node.value]
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, found: Any) -> int:  # noqa: N802
        assert node.value not in self.memsets
        values = (ctypes.c_uint64 * 3)(11, 12, self.given.get(node.value, [0])[-1])
        places = (ctypes.c_void_p * 3)(*(ctypes.addressof(values) + 8 * i for i in range(3)))
        self.kept += [values, places]
        found._obj.function, found._obj.x = NORM if node.value in self.norms else OTHER, 5
        found._obj.arguments = ctypes.addressof(places)
        return 0

    def cuGraphKernelNodeSetParams_v2(self, node: Any, given: Any) -> int:  # noqa: N802
        assert given._obj.function == NORM and given._obj.x == 5
        places = (ctypes.c_void_p * 3).from_address(given._obj.arguments)
        self.given[node.value] = [ctypes.c_uint64.from_address(place).value for place in places if place]
        return 0

    def cuGraphDestroyNode(self, node: Any) -> int:  # noqa: N802
        del self.after[node.value]
        for after in self.after.values():
            after.discard(node.value)
        return 0

    def cuGraphAddKernelNode_v2(self, node: Any, graph: Any, before: Any, count: Any, given: Any) -> int:  # noqa: N802
        number, params = 100 + len(self.added), given._obj
        node._obj.value = number
        places = (ctypes.c_void_p * 2).from_address(params.arguments)
        assert params.function == FUNCTION and graph is GRAPH and params.threads == 256
        numbers = [ctypes.c_uint64.from_address(place).value for place in places if place]
        self.added[number], self.after[number] = (*numbers, params.x), set()
        for one in before[: count.value]:
            self.after[one].add(number)
        return 0

    def cuGraphAddDependencies(self, graph: Any, before: Any, after: Any, count: Any) -> int:  # noqa: N802
        assert count.value == 1
        self.after[before._obj.value].add(after._obj.value)
        return 0

    @staticmethod
    def _give(found: list[int], nodes: Any, count: Any) -> int:
        if nodes is None:
            count._obj.value = len(found)
        else:
            nodes[: len(found)] = found
        return 0

    @property
    def order(self) -> list[int]:
        """The nodes, each after the one that it waits for."""
        (at,) = self.after.keys() - {one for after in self.after.values() for one in after}
        found = [at]
        while self.after[found[-1]]:
            found += self.after[found[-1]]
        return found


def cleared(monkeypatch: pytest.MonkeyPatch, graph: FakeGraph) -> FakeGraph:
    driver = use_driver(monkeypatch)
    for name in [name for name in dir(graph) if name.startswith("cuGraph")]:
        monkeypatch.setattr(driver, name, getattr(graph, name), raising=False)
    clear_by_kernels(GRAPH, Clearing(FUNCTION, {NORM: 3}))
    return graph


def test_a_kernel_clears_what_the_driver_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole words of zeros in one row; what else there may be is left to the driver."""
    left = {4: (4096, 1, 4, 8, 1), 5: (4096, 0, 1, 7, 1), 6: (4097, 0, 1, 8, 1), 7: (4096, 0, 4, 8, 2)}
    cases = {2: (4096, 0, 1, 8, 1), 9: (8192, 0, 4, 100_000, 0)} | left
    graph = cleared(monkeypatch, FakeGraph(cases, 9, {1, 8}))
    assert graph.order == [1, 100, 3, 4, 5, 6, 7, 8, 101] and not graph.given
    assert graph.added == {100: (4096, 2, 1), 101: (8192, 100_000, 128)}


def test_a_norm_clears_the_counter_of_the_product_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One word, if it is a norm, and one of each."""
    one = (4096, 0, 1, 4, 1)
    graph = cleared(monkeypatch, FakeGraph({2: one, 5: one, 8: one, 9: (8192, 0, 4, 1, 1)}, 10, {1, 7}))
    assert graph.given == {1: [11, 12, 4096], 7: [11, 12, 4096]}
    assert graph.order == [1, 3, 4, 100, 6, 7, 101, 10] and graph.added == {100: (4096, 1, 1), 101: (8192, 1, 1)}
