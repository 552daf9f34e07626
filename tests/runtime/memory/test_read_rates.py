"""How fast the disk is: measured once, kept, and not told where it cannot be measured."""

import tracemalloc
from pathlib import Path

import pytest

from mlxr.runtime.memory import read_rates as module
from mlxr.runtime.memory.read_rates import ReadRates, read_rates


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FILE_BYTES", 1 << 20)


def test_it_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "packed"
    rates = read_rates(folder, 2)
    assert rates is not None and rates.disk > 0 and rates.memory > 0
    (kept,) = folder.iterdir()
    monkeypatch.setattr(module, "_disk_rate", lambda _: 5.0)
    assert read_rates(folder, 2) == rates
    other = read_rates(folder, 1)
    assert other is not None and other.disk == 5.0, "other threads read memory at another rate"
    for damaged in ("", "{}", '{"disk": 0, "memory": 1}', '{"disk": "fast", "memory": 1}', "[]"):
        kept.write_text(damaged)
        again = read_rates(folder, 2)
        assert again == ReadRates(5.0, again.memory if again else 0)


def test_many_threads_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NUMBERS", 1 << 20)
    tracemalloc.start()
    assert module._memory_rate(8) > 0
    assert 1 << 20 <= tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert read_rates(tmp_path / "file", 1) is None
