"""A program opened on memory: steps, turns of several callers, its threads' lives, forks, and what Linux refuses."""

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cpu.build import load_library
from mlxr.runtime.hosts.cpu.library import CBatch, Library, OpenProgram
from mlxr_tests.toy_program import VOCAB, toy_source

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(load_library(toy_source(), "toy"))


class Rig:
    """An open program, and the memory that it works on."""

    def __init__(self, library: Library, threads: int = 2) -> None:
        self.tensor = np.full(4, 3, np.uint8)
        self.arena = np.arange(16, dtype=np.uint8)
        address = self.arena.ctypes.data
        self.program = OpenProgram(library, [self.tensor.ctypes.data], (address,), threads, self.tensor)
        self.token_ids = np.arange(10, 14, dtype=np.int32)
        self.rows = np.array([1, 3], np.int32)

    def step(self, kind: int = 0) -> np.ndarray:
        logits = np.full((2, VOCAB), np.nan, np.float32)
        addresses = [array.ctypes.data for array in (self.token_ids, self.rows, logits)]
        self.program.step(CBatch(kind, 4, 1, 2, addresses[0], 0, 0, 0, 0, None, None, 0, *addresses[1:]))
        return logits


EXPECTED = 1000.0 * np.array([[11], [13]]) + np.arange(VOCAB) + 3


def tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))  # noqa: PTH208 (names of tasks that may end meanwhile)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_step_reaches_all_threads(library: Library, threads: int) -> None:
    rig = Rig(library, threads)
    for kind in (0, 1, 1):
        np.testing.assert_array_equal(rig.step(kind), EXPECTED)
    rig.program.copy_blocks(0, np.array([[3, 7], [4, 8]], np.int32))
    assert rig.arena[[7, 8]].tolist() == [3, 4]
    assert rig.program.launches(3) == [1, 2, 1]


def test_several_callers_take_turns(library: Library) -> None:
    rig, wrong = Rig(library), []

    def work() -> None:
        for _ in range(200):
            if not (rig.step() == EXPECTED).all():
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong and rig.program.launches(3) == [800, 0, 0]


@linux
def test_threads_end_with_their_program(library: Library) -> None:
    before = tasks()  # some of which may end by themselves
    rigs = [Rig(library, 3) for _ in range(2)]
    assert len(tasks() - before) == 4
    rigs[0].step()
    rigs[0].program.close()
    assert len(tasks() - before) == 2
    rigs[0].program.close()
    with pytest.raises(HostError, match="the model is closed; load it again"):
        rigs[0].step()
    with pytest.raises(HostError, match="the model is closed"):
        rigs[0].program.copy_blocks(0, np.zeros((0, 2), np.int32))
    assert rigs[0].program.launches(3) is None
    del rigs
    gc.collect()
    assert not tasks() - before


def test_its_memory_lives_until_its_threads_have_ended(library: Library) -> None:
    class Owner:
        def __init__(self, order: list[str]) -> None:
            self.order = order

        def __del__(self) -> None:
            self.order.append("memory")

    order: list[str] = []
    tensor = np.zeros(4, np.uint8)
    program = OpenProgram(library, [tensor.ctypes.data], (0, 0), 2, Owner(order))
    close = library.close
    library.close = lambda handle: (order.append("threads"), close(handle))
    try:
        gc.collect()
        assert order == []
        del program
        gc.collect()
        assert order == ["threads", "memory"]
    finally:
        library.close = close


def test_closing_waits_for_a_step(library: Library) -> None:
    rig = Rig(library)
    assert rig.program._lock.acquire(timeout=5)  # as a step has it
    closer = threading.Thread(target=rig.program.close)
    closer.start()
    time.sleep(0.05)
    assert closer.is_alive()
    rig.program._lock.release()
    closer.join(timeout=30)
    assert not closer.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_is_told(library: Library) -> None:
    rig = Rig(library, 3)
    rig.step()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            rig.program._lock.acquire(blocking=False)  # as a step of another thread had it
            rig.step()
        except HostError as error:
            os.write(writer, str(error).encode())
        finally:
            rig.program.close()  # neither hangs nor frees what is not its own
            os._exit(0)
    os.close(writer)
    for _ in range(600):
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    with os.fdopen(reader, "rb") as stream:
        assert b"this process was forked from the one that loaded the model" in stream.read()
    np.testing.assert_array_equal(rig.step(), EXPECTED)


PROGRAM = """
import gc, os, sys, threading
import numpy as np
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cpu.build import load_library
from mlxr.runtime.hosts.cpu.library import CBatch, Library, OpenProgram
from mlxr_tests.toy_program import VOCAB, toy_source
library = Library(load_library(toy_source(), "toy"))
tensor = np.zeros(4, np.uint8)
def opened(threads):
    return OpenProgram(library, [tensor.ctypes.data], (0, 0), threads, tensor)
ids, rows, logits = np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros((1, VOCAB), np.float32)
batch = CBatch(0, 1, 1, 1, ids.ctypes.data, 0, 0, 0, 0, None, None, 0, rows.ctypes.data, logits.ctypes.data)
"""


def run_python(program: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM + textwrap.dedent(program)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_python_ends_while_another_thread_runs_steps() -> None:
    said = run_python("""
        program = opened(2)
        def work():
            while True:
                program.step(batch)
        threading.Thread(target=work, daemon=True).start()
        threading.Event().wait(0.2)
        print("done")
    """)
    assert said == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_ends_as_usual() -> None:
    said = run_python("""
        program = opened(3)
        program.step(batch)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        print(os.waitpid(child, 0)[1])
    """)
    assert said == "0"


@linux
def test_more_threads_than_the_system_gives() -> None:
    said = run_python("""
        import resource
        kept = [opened(2)]
        used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
        try:
            opened(4000)
        except HostError as error:
            print(error)
        kept[0].step(batch)
        print(len(os.listdir("/proc/self/task")))
    """)
    message, _, tasks = said.rpartition("\n")
    assert "cpu: cannot start 4000 threads with their memory: " in message and "give fewer --threads" in message
    assert int(tasks) < 50, "those that were started have ended"


def test_a_library_without_the_functions(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="the library has no function mlxr_abi"):
        Library(ctypes.CDLL(None))


def test_signals_are_for_the_callers_thread() -> None:
    said = run_python("""
        import signal, time
        program = opened(4)
        got = []
        signal.signal(signal.SIGINT, lambda *_: got.append(threading.current_thread() is threading.main_thread()))
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGINT)
            program.step(batch)
        print(all(got) and len(got) > 0)
    """)
    assert said == "True"
