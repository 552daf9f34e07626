"""Packed weights in a file: the bits of those in memory, whole or not there, made once, and what if it cannot be."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlxr.compiler.artifact import Artifact, CTensor, Recipe, TensorSource, WeightFormat
from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cpu import panel_file as module
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.cpu.panel_file import PAGE_BYTES, PanelFile, PanelFileError, Write
from mlxr.runtime.hosts.cpu.placing import PlacedTensors
from mlxr.runtime.hosts.cpu.tensors import bytes_by_place, place_tensors
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr.runtime.memory.free_memory import FreeMemory, MachineMemory
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests import memory_weights
from mlxr_tests.memory_weights import read_memory
from mlxr_tests.native_weights import random_native
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.storyteller import TINY
from mlxr_tests.tolerances import check_logits

BLOCKS = [str(format) for format in WeightFormat if format.is_quantised and not format.affine]
FORMATS = [*BLOCKS, "affine4_g64_f16", "affine3_g32_bf16"]
MATRICES = [f"layers.{i}.{m}" for i in range(4) for m in ("attention.o", "mlp.gate", "mlp.up", "mlp.down")]
PROMPT = [5, 60, 7, 8]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files of panels go; libraries stay in the usual cache."""
    monkeypatch.setattr(module, "cache_folder", lambda name: tmp_path / name)
    return tmp_path / "packed"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_file({"a": np.ones(4, np.float32)}, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def logits(host: Host, arena: Arena) -> np.ndarray:
    """Of a prompt, and of two tokens after it, each in a step of its own."""
    pager = Pager.from_geometry(arena.geometry)
    seq, rows = pager.add_sequence(), []
    for tokens in (PROMPT, [2], [3]):
        batch = Batch.build([BatchRequest(seq, tokens, pager.length(seq), "last")], pager, host.plan.query_tile)
        rows.append(host.read(host.step(batch)).copy())
    return np.concatenate(rows)


def loaded(artifact: Artifact, native: Any, **options: Any) -> tuple[CpuHost, np.ndarray]:
    arena = Arena(artifact.plan.arena)
    host = CpuHost(artifact, read_memory(native), arena, threads=2, **options)
    return host, logits(host, arena)


def test_every_format_has_the_same_bits(weights: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Made now, mapped later, and copied to memory in part."""
    assert len(FORMATS) == len(MATRICES)
    spec = small_spec(
        model__num_layers=4,
        model__hidden_size=256,
        model__attention={"num_heads": 4, "num_kv_heads": 2, "head_dim": 64},
        model__mlp={"intermediate_size": 256},
        weights={"default": "f16", "output": "q8_0", "tensors": dict(zip(MATRICES, FORMATS, strict=True))},
        compute="exact",
    )
    artifact = compiled(spec, target="cpu")
    native, _ = random_native(artifact.plan)
    file = open_weights(weights)
    _, expected = loaded(artifact, native)
    assert not folder.exists()
    tensors = artifact.plan.program("cpu").library.tensors
    packed = sum(tensor.size_bytes for tensor in tensors if tensor.layout == "packed")
    for resident in (0, 0, packed // 2, packed):
        host, numbers = loaded(artifact, native, file=file, resident=resident)
        np.testing.assert_array_equal(numbers, expected)
        assert len(caplog.messages) == 1, "it is told of once"
        assert (host.own_bytes, host.mapped_bytes) == bytes_by_place(tensors, read_memory(native), resident)
    assert len(list(folder.iterdir())) == 1
    assert "packed weights are kept in " in caplog.text and " KiB): they are mapped" in caplog.text


def expert_artifact() -> Artifact:
    """Experts of 17.5 pages of 16 KiB."""
    experts = {"count": 4, "per_token": 2, "router": "softmax_topk", "normalise": True}
    spec = small_spec(
        model__num_layers=2,
        model__hidden_size=256,
        model__attention={"num_heads": 4, "num_kv_heads": 2, "head_dim": 64},
        model__mlp={"intermediate_size": 1056, "experts": experts},
        model__tensor_names="qwen3_moe",
        weights={"default": "q8_0"},
        compute="exact",
    )
    return compiled(spec, target="cpu")


def test_experts_are_runs_of_pages_and_are_asked_for(weights: Path) -> None:
    artifact = expert_artifact()
    native, numbers = random_native(artifact.plan)
    arena = Arena(artifact.plan.arena)
    wanted = logits(ReferenceHost(artifact, numbers, arena), arena)
    tensors = [tensor for tensor in artifact.plan.program("cpu").library.tensors if tensor.matrices > 1]
    assert len(tensors) == 2 * 3 and {(t.matrices, t.chosen, t.stride) for t in tensors} == {(4, 2, 18 * PAGE_BYTES)}
    _, expected = loaded(artifact, native)
    check_logits("experts that begin at pages", expected, wanted, "f32")
    host, mapped = loaded(artifact, native, file=open_weights(weights), resident=0)
    np.testing.assert_array_equal(mapped, expected)
    places = {tensor: place for tensor, place in host.lent().items() if tensor.matrices > 1}
    assert all((place + expert * 18 * PAGE_BYTES) % 4096 == 0 for place in places.values() for expert in range(4))
    assert host._running.read_ahead(on=True) == 0, "the weights fit into memory"
    arena = Arena(artifact.plan.arena)
    pager = Pager.from_geometry(arena.geometry)
    batch = Batch.build([BatchRequest(pager.add_sequence(), [7], 0, "last")], pager, host.plan.query_tile)
    host.step(batch)
    panels = 1056 // 16 * 16 * (256 // 32 * 34)
    # Gate, up and down of two experts, and down once more, whole with its gap, when gate and up are multiplied.
    assert host._running.read_ahead(on=False) == 2 * 2 * (3 * panels + 18 * PAGE_BYTES)
    host.step(batch)
    assert host._running.read_ahead(on=False) == 2 * 2 * (3 * panels + 18 * PAGE_BYTES)


def test_reading_ahead_changes_no_bit(weights: Path) -> None:
    artifact = expert_artifact()
    native, _ = random_native(artifact.plan)
    _, expected = loaded(artifact, native)
    arena = Arena(artifact.plan.arena)
    host = CpuHost(artifact, read_memory(native), arena, threads=2, file=open_weights(weights), resident=0)
    host._running.read_ahead(on=True)
    np.testing.assert_array_equal(logits(host, arena), expected)
    assert host._running.read_ahead(on=True) > 0


@pytest.mark.parametrize("free", [0, 1 << 40])
def test_the_system_is_asked_for_what_memory_has_no_room_for(
    weights: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """Of weights that do not fit, to read experts ahead; of those that do, for large pages."""
    large: list[object] = []
    monkeypatch.setattr(Host, "free_memory", classmethod(lambda cls: FreeMemory(free, 1 << 40)))
    monkeypatch.setattr("mlxr.runtime.hosts.cpu.host.ask_for_large_pages", large.append)
    artifact = expert_artifact()
    host, _ = loaded(artifact, random_native(artifact.plan)[0], file=open_weights(weights), resident=0)
    assert (host._running.read_ahead(on=True) > 0) == (not free) == (not large)


# The file alone


def tensor(name: str = "a", rows: int = 40) -> CTensor:
    part = TensorSource(name, (rows, 64), (Recipe(f"{name}.weight"),), (), WeightFormat.Q8_0)
    size = -(-rows // 16) * 16 * 68
    return CTensor(name=name, layout="packed", format="q8_0", shape=(rows, 64), size_bytes=size, parts=(part,))


def panel_file(weights: Path, packing: str = "x") -> PanelFile:
    return PanelFile("my model", (tensor(), tensor("b", 4000)), packing, open_weights(weights))


def filling(file: PanelFile, times: list[int]) -> Callable[[Write], None]:
    def fill(write: Write) -> None:
        times.append(1)
        for tensor, place in file.offsets.items():
            write(place, np.full(tensor.size_bytes, 7, np.uint8))

    return fill


def test_a_file_is_made_once(weights: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    synced: list[list[str]] = []
    monkeypatch.setattr(module.os, "fsync", lambda _: synced.append([path.name[:5] for path in folder.iterdir()]))
    for _ in range(2):
        file = panel_file(weights)
        _, content = file.open() or file.make(filling(file, times))
        assert content.size == file.size_bytes and content.size % PAGE_BYTES == 0
        assert all((content[place : place + tensor.size_bytes] == 7).all() for tensor, place in file.offsets.items())
        assert not content.flags.writeable
    assert len(times) == 1 and [path.name for path in folder.iterdir()] == [file.path.name]
    assert synced == [[".new-"]], "it is on the disk before it has its name"
    assert panel_file(weights, "other panels").open() is None
    assert PanelFile("m", file.tensors[:1], "x", file.weights).open() is None


def test_weights_are_not_read_for_a_file_that_cannot_be_there(
    weights: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    monkeypatch.setattr(module, "weights_digest", lambda file: f"digest {read.append(1)}")
    assert panel_file(weights).open() is None
    folder.mkdir()
    (folder / "other-0123456789abcdef.panels").write_text("")
    assert panel_file(weights).open() is None and not read
    (folder / "my-model-0123456789abcdef.panels").write_text("")
    assert panel_file(weights).open() is None and read


@pytest.mark.parametrize("damage", ["cut", "longer", "head", "first bytes", "last bytes", "empty"])
def test_a_damaged_file_is_made_again(weights: Path, damage: str) -> None:
    file, times = panel_file(weights), []
    file.make(filling(file, times))
    with file.path.open("r+b") as stream:
        end = file.offsets[file.tensors[1]] + file.tensors[1].size_bytes
        place = {"head": 40, "first bytes": PAGE_BYTES, "last bytes": end - 1}.get(damage)
        if place is None:
            stream.truncate({"cut": file.size_bytes - 1, "longer": file.size_bytes + 1, "empty": 0}[damage])
        else:
            stream.seek(place)
            stream.write(b"\xff")
    again = panel_file(weights)
    assert again.open() is None
    again.make(filling(again, times))
    assert len(times) == 2 and again.open() is not None


def test_weights_that_change_are_packed_again(weights: Path) -> None:
    file, times = panel_file(weights), []
    file.make(filling(file, times))
    os.utime(weights, ns=(1, 1))
    again = panel_file(weights)
    assert again.path == file.path and again.open() is None
    again.make(filling(again, times))
    assert len(times) == 2
    save_file({"a": np.zeros(4, np.float32)}, weights)
    assert panel_file(weights).path != file.path


def test_others_wait_for_the_one_that_makes_it(weights: Path, folder: Path) -> None:
    folder.mkdir()
    times: list[int] = []
    ready = threading.Barrier(4)

    def make() -> None:
        file = panel_file(weights)
        ready.wait()
        made.append(file.make(filling(file, times))[1].size)

    made: list[int] = []
    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(times) == 1 and made == [panel_file(weights).size_bytes] * 4
    assert len(list(folder.iterdir())) == 1


def test_what_a_killed_process_left_is_taken_over(weights: Path, folder: Path) -> None:
    file, times = panel_file(weights), []
    folder.mkdir()
    (folder / f".new-{file._identity}").write_bytes(b"x" * (file.size_bytes + 10))
    file.make(filling(file, times))
    assert [path.name for path in folder.iterdir()] == [file.path.name]


def test_a_file_that_is_removed_while_it_is_written(weights: Path, folder: Path) -> None:
    """As mlxr cache clear does it, while another process begins: what that one writes is not taken for it."""
    file = panel_file(weights)
    new = folder / f".new-{file._identity}"

    def fill(write: Write) -> None:
        new.unlink()
        new.write_text("of another process")

    with pytest.raises(PanelFileError, match="was removed while it was written"):
        file.make(fill)
    assert list(folder.iterdir()) == [new] and new.read_text() == "of another process"


def refuse(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_nothing(weights: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = panel_file(weights)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "pwrite", refuse)
        with pytest.raises(PanelFileError, match=r"disk: No space left on device \(.*packed\)"):
            file.make(filling(file, []))
    assert not list(folder.iterdir())
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: _Usage())
    with pytest.raises(
        PanelFileError, match=r"they take .* KiB, and .*packed has 1\.0 MiB free: remove .* cache clear"
    ):
        file.make(filling(file, []))
    assert not list(folder.iterdir())


class _Usage:
    free = 1 << 20


def test_a_folder_that_is_none(weights: Path, folder: Path) -> None:
    folder.write_text("")
    file = panel_file(weights)
    with pytest.raises(PanelFileError, match="packed weights cannot be kept on disk: File exists"):
        file.make(filling(file, []))


@pytest.mark.parametrize("free", [1 << 30, 1 << 10])
def test_without_a_file_panels_are_in_memory_if_they_fit(
    weights: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    class Library:
        def pack(self, *_: Any) -> int:
            return 0

    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: _Usage())
    monkeypatch.setattr(MachineMemory, "read", lambda _: FreeMemory(free, 1 << 40))
    wanted = tensor(rows=20000)
    file = PanelFile("m", (wanted,), "x", open_weights(weights))
    native = {"a": np.zeros((20000, 68), np.uint8)}

    def place() -> PlacedTensors:
        return place_tensors([wanted], Library(), read_memory(native), 2, file=file)  # type: ignore[arg-type]

    if free < wanted.size_bytes:
        with pytest.raises(HostError, match=r"free: remove .*\. Nor do they fit into memory: they take 1\.3 MiB, and"):
            place()
        return
    placed = place()
    assert placed.panels is None and placed.own_bytes >= wanted.size_bytes
    assert "packed weights cannot be kept on disk" in placed.notes[0] and placed.notes[0].endswith("they are in memory")


_LOAD = """
import sys
from pathlib import Path
import mlxr
from mlxr.runtime.hosts.cpu import panel_file
panel_file.cache_folder = lambda name: Path(sys.argv[1]) / name
print("ready", flush=True)
sys.stdin.readline()
with mlxr.load(sys.argv[2], host="cpu", mmap="on", changes=mlxr.Changes(context=64, compute="exact")) as model:
    assert model.host.mapped_bytes > 0
    for _ in range(3):
        (answer,) = model.start([[1, 20, 21, 22]], max_tokens=8).finish()
        print(answer.token_ids, flush=True)
        sys.stdin.readline()
"""


@pytest.mark.long
def test_processes_share_a_file(tmp_path: Path, folder: Path) -> None:
    """Three begin at once; one is killed, and the file is removed, while the others go on."""
    command = [sys.executable, "-c", _LOAD, str(tmp_path), str(TINY)]
    pipe: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as running:
        processes = [running.enter_context(subprocess.Popen(command, **pipe)) for _ in range(3)]

        def go() -> list[str]:
            for process in processes:
                process.stdin.write("\n")
                process.stdin.flush()
            return [process.stdout.readline() for process in processes]

        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
        first = go()
        assert len(set(first)) == 1 and first[0].startswith("[")
        (kept,) = folder.iterdir()
        assert kept.suffix == ".panels"
        processes.pop().kill()
        assert go() == first[:2]
        kept.unlink()
        assert go() == first[:2]
        for process in processes:
            process.stdin.close()
            assert process.wait() == 0


@pytest.mark.long
@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_writer_does_no_harm(tmp_path: Path, folder: Path, weights: Path, ends: signal.Signals) -> None:
    """A process that is killed while it writes leaves a file that the next one takes over; one that is told, none."""
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from mlxr.runtime.hosts.cpu import panel_file
        panel_file.cache_folder = lambda name: Path(sys.argv[1]) / name
        sys.path[:0] = sys.argv[3:]
        from test_panel_file import panel_file as file_of
        def fill(write):
            print("writing", flush=True)
            sys.stdin.readline()
        file_of(Path(sys.argv[2])).make(fill)
    """)
    modules = [str(Path(__file__).parent), str(Path(memory_weights.__file__).parents[1])]
    command = [sys.executable, "-c", program, str(tmp_path), str(weights), *modules]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        assert [path.name[:5] for path in folder.iterdir()] == [".new-"]
        process.send_signal(ends)
        assert process.wait() == -ends
    assert len(list(folder.iterdir())) == (ends == signal.SIGKILL)
    file, times = panel_file(weights), []
    file.make(filling(file, times))
    assert times and [path.name for path in folder.iterdir()] == [file.path.name]
