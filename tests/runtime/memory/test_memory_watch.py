"""The watch: when it looks, what it asks for, and that it does not change its mind at the limit."""

import pytest

from mlxr.runtime.memory.free_memory import FreeMemory
from mlxr.runtime.memory.memory_watch import MemoryWatch

GIB = 1 << 30


class Machine:
    """A clock and readings that tests set."""

    def __init__(self, total: int) -> None:
        self.total, self.free, self.now, self.readings = total, total, 0.0, 0

    def read(self) -> FreeMemory:
        self.readings += 1
        return FreeMemory(self.free, self.total)

    def clock(self) -> float:
        return self.now


def test_it_reads_twice_a_second() -> None:
    machine = Machine(32 * GIB)
    watch = MemoryWatch(machine.read, machine.clock)
    for step in range(1000):
        machine.now = step / 100
        watch.poll()
    assert machine.readings == 20


@pytest.mark.parametrize(("total", "limit"), [(32 * GIB, 32 * GIB // 20), (8 * GIB, GIB // 2), (GIB, GIB // 8)])
def test_scarce_memory_stays_scarce_until_twice_the_limit_is_free(total: int, limit: int) -> None:
    machine = Machine(total)
    watch = MemoryWatch(machine.read, machine.clock)

    def poll(free: int) -> int:
        machine.now += 1
        machine.free = free
        return watch.poll()

    assert (poll(limit), watch.is_low) == (0, False)
    assert (poll(limit - 1), watch.is_low) == (limit + 1, True)
    assert (watch.poll(), watch.is_low) == (0, True), "between two readings nothing is asked for again"
    assert (poll(2 * limit - 1), watch.is_low) == (1, True)
    assert (poll(2 * limit), watch.is_low) == (0, False)
    assert (poll(limit), watch.is_low) == (0, False)
