"""Graphs of launches, and what they keep, with a fake driver."""

import functools
import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mlxr.runtime.hosts.cuda import launch_graph, recorded_calls, recording
from mlxr.runtime.hosts.cuda.cleared_memory import Clearing
from mlxr.runtime.hosts.cuda.launch_graph import Event, GraphLaunch, LaunchGraph
from mlxr.runtime.hosts.cuda.matrix_library import Product, ProductLaunch
from mlxr.runtime.hosts.cuda.recorded_calls import Call
from mlxr_tests.fake_driver import FakeDriver, use_driver
from mlxr_tests.variants import variant


class Kept:
    """Something that a graph reads."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What some functions of the driver return, by their names; those that are called are added."""
    returned: dict[str, Any] = {}
    driver = use_driver(monkeypatch)

    def function(name: str) -> Any:
        return lambda *_: returned.setdefault(name, 0)

    monkeypatch.setattr(FakeDriver, "__getattr__", lambda _, name: function(name))
    assert driver.cuInit(0) == 0
    return returned


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_graph_reads_stays_until_its_last_launch_has_ended(calls: dict[str, Any], fails: bool) -> None:
    """To wait for the context would spoil what MLX captures in another thread."""
    kept, end = Kept(), Event()
    there = weakref.ref(kept)
    graph = LaunchGraph([GraphLaunch(1, (1, 1, 1), 32, [8])], [kept])
    graph.launch(1, end)
    end.record(1)
    calls["cuEventSynchronize"] = 719 if fails else 0
    del kept, graph
    gc.collect()
    assert (there() is not None) == fails and ("cuGraphExecDestroy" in calls) == (not fails)
    assert "cuCtxSynchronize" not in calls
    launch_graph._lost.clear()


def test_only_kernels_that_wait_by_themselves_begin_while_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    after: list[int] = []
    overlapping: list[tuple[int, int, int]] = []
    driver = use_driver(monkeypatch)

    def add(node: Any, _: object, __: object, number: Any, ___: object) -> int:
        after.append(number.value)
        return 0

    def depend(_: object, __: object, ___: object, edge: Any, ____: object) -> int:
        overlapping.append((edge._obj.from_port, edge._obj.to_port, edge._obj.type))
        return 0

    monkeypatch.setattr(driver, "cuGraphAddKernelNode_v2", add, raising=False)
    monkeypatch.setattr(driver, "cuGraphAddDependencies_v2", depend, raising=False)
    waits = (True, True, False, True)
    LaunchGraph([GraphLaunch(1, (1, 1, 1), 32, [8], waits=waits) for waits in waits], [])
    assert after == [0, 0, 1, 0] and overlapping == [(1, 0, 1)] * 2


@pytest.mark.parametrize("clears", [False, True])
def test_a_graph_with_products_clears_their_memory_by_kernels(
    calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch, clears: bool
) -> None:
    """cleared_memory.py looks through its nodes, before it is made ready."""
    cleared = list[object]()
    library = SimpleNamespace(prepare=lambda *_: None, multiply=lambda *_: None)
    monkeypatch.setattr(launch_graph, "matrix_library", lambda: library)
    monkeypatch.setattr(launch_graph, "clear_by_kernels", lambda _, by: cleared.append((by, {*calls})))
    product, clearing = ProductLaunch(cast("Product", None), 1, 2, 0, 0, 3, 4), Clearing(5, {})
    LaunchGraph([product], [], clearing if clears else None)
    assert [by for by, _ in cleared] == [clearing] * clears
    for _, before in cleared:
        assert "cuStreamEndCapture" in before and "cuGraphInstantiateWithFlags" not in before


def test_launches_overlap_on_hopper_and_newer_with_drivers_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = use_driver(monkeypatch)

    def tell(major: int) -> None:
        def attribute(told: Any, *_: object) -> int:
            told._obj.value = major
            return 0

        monkeypatch.setattr(driver, "cuDeviceGetAttribute", attribute, raising=False)
        launch_graph.overlap.cache_clear()

    for major, expected in ((8, False), (9, True), (10, True)):
        tell(major)
        assert launch_graph.overlap() == expected
    monkeypatch.setattr(launch_graph, "has", lambda _: False)
    tell(9)
    assert not launch_graph.overlap()
    launch_graph.overlap.cache_clear()


def test_clusters_belong_to_recorded_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX loads the same image itself, and its graphs see no clusters."""
    told, name, image = list[tuple[int, int]](), "rows", b"image"
    driver = use_driver(monkeypatch)

    def find(function: Any, *_: object) -> int:
        function._obj.value = 1
        return 0

    def attribute(_: object, which: int, value: int) -> int:
        told.append((which, value))
        return 0

    monkeypatch.setattr(driver, "cuModuleLoadData", lambda *_: 0, raising=False)
    monkeypatch.setattr(driver, "cuModuleGetFunction", find, raising=False)
    monkeypatch.setattr(driver, "cuFuncSetAttribute", attribute, raising=False)
    monkeypatch.setattr(recorded_calls, "FUNCTIONS", launch_graph.Functions())
    Call(name, image, (2, 1, 1), 32, []).launch({})
    assert not told
    Call(name, image, (2, 1, 1), 32, [], cluster=2).launch({})
    assert told == [(11, 2), (12, 1), (13, 1)]


@pytest.mark.parametrize("newer", [True, False])
def test_recorded_calls_have_the_clusters_of_the_plan(monkeypatch: pytest.MonkeyPatch, newer: bool) -> None:
    """Where a card has clusters; elsewhere the kernels work alone."""
    program = variant("rows-stages").plan.first
    planned = {kernel.name: kernel.cluster for kernel in program.kernels}
    kernel = functools.partial(dict, compiled_source=b"", shared_memory=0)
    host: Any = SimpleNamespace(program=program, launcher=SimpleNamespace(kernel=lambda _: kernel))
    dims = {"tokens": 5, "seqs": 5, "rows": 5, "context": 8, "tiles": 0}
    launches = [la for la in program.phase("decode").launches if la.runs(dims, library=False)]
    monkeypatch.setattr(recording, "overlap", lambda: newer)
    calls, _ = recording.recording_of(host, launches, dims)
    found = {call.name: call.cluster for call in calls if isinstance(call, Call)}
    assert (
        found == {name: planned[name] if newer else 1 for name in found} and max(planned[name] for name in found) == 2
    )


def test_a_graph_that_never_ran_waits_for_nothing(calls: dict[str, Any]) -> None:
    LaunchGraph([], [])
    gc.collect()
    assert "cuGraphExecDestroy" in calls and "cuEventSynchronize" not in calls


def test_a_kernel_is_loaded_once_whatever_host_asks(calls: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    loads = list[bytes]()

    def load(_: FakeDriver, module: object, image: bytes) -> int:
        loads.append(image)
        return 0

    def find(_: FakeDriver, function: Any, *names: object) -> int:
        function._obj.value = len(loads)
        return 0

    monkeypatch.setattr(FakeDriver, "cuModuleLoadData", load, raising=False)
    monkeypatch.setattr(FakeDriver, "cuModuleGetFunction", find, raising=False)
    functions = launch_graph.Functions()
    assert [functions.of("a", image) for image in (b"1", b"2", b"1")] == [1, 2, 1] and loads == [b"1", b"2"]


def test_who_waits_while_an_event_is_recorded_again_leaves_others_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another thread has seen the end of is what was recorded before."""
    driver, waits, end = use_driver(monkeypatch), list[bool](), Event()

    def record(*_: object) -> int:
        if waits:  # the second time
            end.wait()
        return 0

    def wait(_: object) -> int:
        waits.append(True)
        return 0

    monkeypatch.setattr(driver, "cuEventRecord", record, raising=False)
    monkeypatch.setattr(driver, "cuEventSynchronize", wait, raising=False)
    end.record(1)
    end.wait()
    end.wait()
    assert len(waits) == 1, "its end is known"
    end.record(1)
    end.wait()
    assert len(waits) == 3
