"""Which packed weights are mapped and which are in memory, and what is told of it before the model is loaded."""

import logging
from pathlib import Path

import pytest

import mlxr
from mlxr.compiler.errors import HostError, RequestError
from mlxr.loading.options import LoadOptions
from mlxr.loading.planned_memory import planned_memory
from mlxr.runtime.engine import choose_resident as choosing
from mlxr.runtime.hosts.cpu import panel_file
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.memory.free_memory import FreeMemory
from mlxr.runtime.memory.read_rates import ReadRates
from mlxr_tests.storyteller import TINY

PROMPT = [1, *range(20, 40)]
CHANGES = mlxr.Changes(context=64, compute="exact")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the files of panels; other things stay in the usual cache."""
    for module in (panel_file, choosing):
        monkeypatch.setattr(module, "cache_folder", lambda name: tmp_path / name)
    monkeypatch.setattr(choosing, "read_rates", lambda folder, threads: ReadRates(1e6, 1e9))
    return tmp_path / "packed"


def answer(mmap: str, free: int | None = None) -> tuple[list[int], CpuHost, tuple[str, ...]]:
    with pytest.MonkeyPatch.context() as patch:
        if free is not None:
            patch.setattr(Host, "free_memory", classmethod(lambda cls: FreeMemory(free, 1 << 40)))
        model = mlxr.load(TINY, host="cpu", threads=2, changes=CHANGES, mmap=mmap)
    with model:
        assert isinstance(model.host, CpuHost)
        (done,) = model.start([PROMPT], max_tokens=8).finish()
        return done.token_ids, model.host, model.notes


def test_a_model_larger_than_memory_runs(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In memory, refused, mapped, with parts in memory, and, since the file is there, mapped where it would fit."""
    expected, host, notes = answer("auto")
    whole = host.own_bytes
    assert not notes and not folder.exists() and not caplog.messages
    arena, activations = host.arena.geometry.size_bytes, host.program.memory.activation_bytes
    free = arena + activations + whole // 2
    with pytest.raises(HostError, match=r"needs .*\(weights .*the largest that fits: nothing"):
        answer("off", free)
    with caplog.at_level(logging.WARNING):
        tokens, mapped, notes = answer("auto", free)
    assert tokens == expected
    assert 0 < mapped.own_bytes < whole // 2 and mapped.mapped_bytes > 0
    told, made = caplog.messages
    assert "packed weights are kept in " in made and "mlxr cache clear packed" in made
    assert told.startswith("note: tiny-Q8_0, ") and "% of the weights fit, a token reads " in told
    library = mapped.program.library
    assert library is not None
    packed = sum(tensor.size_bytes for tensor in library.tensors if tensor.layout == "packed")
    scratch = library.thread_bytes  # of the second thread
    room = packed - mapped.mapped_bytes + whole // 2 - mapped.own_bytes - scratch
    assert f": {room / packed:.0%} of the weights fit" in told
    assert "tok/s predicted: " in told and told.endswith("976.6 KiB/s (measured)")
    tokens, again, notes = answer("auto")
    assert tokens == expected and again.mapped_bytes > mapped.mapped_bytes and not notes
    assert len(list(folder.iterdir())) == 1


def test_what_takes_long_to_pack_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_PACK_RATE", 1.0)
    monkeypatch.setattr(choosing, "_DISK_SHARE", 0.0)
    assert not answer("auto")[1].mapped_bytes, "the disk has too little room"
    monkeypatch.setattr(choosing, "_DISK_SHARE", 1.0)
    assert not answer("off")[1].mapped_bytes
    assert answer("auto")[1].mapped_bytes and len(list(folder.iterdir())) == 1


def test_only_hosts_that_pack_map(folder: Path) -> None:
    with pytest.raises(HostError, match="host reference packs no weights that could be mapped"):
        mlxr.load(TINY, host="reference", mmap="on")
    with pytest.raises(RequestError, match="mmap is 'yes', expected auto, on, off"):
        LoadOptions(mmap="yes")  # type: ignore[arg-type]


def test_a_server_does_not_count_what_the_system_may_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    options = LoadOptions(host="cpu", threads=2, changes=CHANGES)
    whole = planned_memory(TINY, options)
    monkeypatch.setattr(Host, "free_memory", classmethod(lambda cls: FreeMemory(1, whole.least - 1)))
    assert planned_memory(TINY, options).least < whole.least // 2
    monkeypatch.setattr(Host, "free_memory", classmethod(lambda cls: FreeMemory(1, whole.least)))
    assert planned_memory(TINY, options).least == whole.least
