"""Memory for logits is used again, and never while somebody can see it."""

import threading

import numpy as np

from mlxr.runtime.hosts.cpu import memory as memory_module
from mlxr.runtime.hosts.cpu.memory import LogitsMemory


def start(array: np.ndarray) -> int:
    return array.ctypes.data


def test_what_nobody_holds_is_used_again() -> None:
    memory = LogitsMemory(100)
    first = memory.take(3)
    assert first.shape == (3, 100) and first.dtype == np.float32 and first.flags.c_contiguous
    address = start(first)
    second = memory.take(3)
    assert start(second) != address
    del first
    assert start(memory.take(2)) == address
    assert start(memory.take(3)) == address


def test_a_view_of_it_keeps_it() -> None:
    memory = LogitsMemory(100)
    whole = memory.take(3)
    address, row, part = start(whole), whole[1], whole[:, 5:][2]
    shape = np.asarray(row).reshape(10, 10).T
    del whole, row
    assert start(memory.take(3)) != address
    del part
    assert start(memory.take(3)) != address
    del shape
    found = {start(memory.take(3)) for _ in range(3)}
    assert len(found) == 1


def test_more_rows_need_more_memory() -> None:
    memory = LogitsMemory(100)
    small = memory.take(1)
    del small
    large = memory.take(50)
    assert large.shape == (50, 100)
    large[:] = 1
    assert memory.take(0).shape == (0, 100)


def test_little_is_kept(monkeypatch) -> None:
    memory = LogitsMemory(100)
    held = [memory.take(1) for _ in range(9)]
    assert len({start(array) for array in held}) == 9
    assert len(memory._arrays) == memory_module._MOST_ARRAYS
    monkeypatch.setattr(memory_module, "_MOST_BYTES", 100)
    assert memory.take(2).base is None and len(memory._arrays) == memory_module._MOST_ARRAYS


def test_several_threads_never_get_the_same() -> None:
    memory, wrong = LogitsMemory(10), []

    def work(number: int) -> None:
        for _ in range(3000):
            array = memory.take(1)
            array[:] = number
            if (array != number).any():
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
