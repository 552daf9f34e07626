"""Both tiers together: every block that comes back is the one that was put, whatever happens to files and disks."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxr.runtime.cache.tiers import disk_tier
from mlxr.runtime.cache.tiers.block_file import Bytes, file_bytes
from mlxr.runtime.cache.tiers.block_folder import BlockFolder
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr_tests.kv_blocks import IDENTITY, chain, digests, fetched, file_of, flip, make_tiers, other

SIZE = IDENTITY.block_bytes
FILE_SIZE = file_bytes(IDENTITY)


def files(folder: Path) -> set[str]:
    """Digests of the blocks of all files."""
    return {path.stem.partition("-")[0] for path in folder.glob("*/*.kv")}


def test_blocks_go_down_and_come_back(tmp_path: Path) -> None:
    names, data = chain(10)
    tiers = make_tiers(tmp_path, memory_blocks=4)
    tiers.put(names[::-1], data[::-1])  # the pager evicts leaves first
    tiers.flush()
    assert files(tmp_path) == {block.digest.hex() for block in names[4:]}
    assert tiers.count(digests(names)) == 10 and tiers.count_in_memory(digests(names)) == 4
    assert (fetched(tiers, names) == data).all()
    stats = tiers.stats()
    assert (stats.memory_hits, stats.disk_hits, stats.memory_blocks, stats.disk_blocks) == (4, 6, 4, 6)
    assert stats.memory_bytes == 4 * SIZE and stats.waiting_bytes == 0
    tiers.close()
    again = make_tiers(tmp_path)
    assert (fetched(again, names) == data).all(), "what was in memory is saved at the end"
    assert fetched(again, chain(3, "another")[0]).shape == (0, SIZE)
    assert fetched(again, []).shape == (0, SIZE)
    again.close()


def test_a_gap_ends_what_comes_back(tmp_path: Path) -> None:
    names, data = chain(6)
    tiers = make_tiers(tmp_path, memory_blocks=9)
    tiers.put([*names[:2], *names[3:]], data[[0, 1, 3, 4, 5]])
    assert tiers.count(digests(names)) == 2
    assert (fetched(tiers, names) == data[:2]).all()
    tiers.close()


def test_memory_keeps_what_was_used_last() -> None:
    names, data = chain(4)
    tiers = make_tiers(None, memory_blocks=2)
    tiers.put(names[:2], data[:2])
    fetched(tiers, names[:1])
    data_of_caller = data[2:3].copy()
    tiers.put(names[2:3], data_of_caller)
    data_of_caller[...] = 0
    assert [tiers.count([digest]) for digest in digests(names)] == [1, 0, 1, 0]
    assert (fetched(tiers, names[2:3]) == data[2]).all()
    tiers.put(names[:1], data[:1])  # it is there: only used again
    tiers.put(names[3:], data[3:])
    assert [tiers.count([digest]) for digest in digests(names)] == [1, 0, 0, 1]
    tiers.close()


def test_tiers_that_are_off_keep_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "cache"))
    names, data = chain(3)
    tiers = make_tiers(None)
    tiers.put(names, data)
    assert tiers.save(names, data) == 0 and tiers.count(digests(names)) == 0
    tiers.close()
    assert list(tmp_path.iterdir()) == []
    tiers = make_tiers(tmp_path)
    assert tiers.save(names, data) == 3
    tiers.close()
    tiers = make_tiers(tmp_path, disk_bytes=0)
    assert tiers.count(digests(names)) == 0 and tiers.stats().disk_bytes == 0
    tiers.close()


def test_the_default_folder_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path))
    names, data = chain(1)
    tiers = BlockTiers(IDENTITY, memory_bytes=0, disk_bytes=1 << 20, disk_bytes_per_hour=1 << 20)
    assert tiers.save(names, data) == 1
    tiers.close()
    folder = tmp_path / "kv" / IDENTITY.folder_name
    assert len(list(folder.iterdir())) == 1
    assert folder.stat().st_mode & 0o077 == 0, "tokens of prompts are nobody else's business"


def replace_by_folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "wrong checksum": lambda path: path.write_bytes(path.read_bytes()[:-4] + bytes(4)),
    "without content": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "another block": lambda path: path.write_bytes(next(p for p in path.parent.iterdir() if p != path).read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_are_removed_and_never_used(damage: Callable[[Path], object], tmp_path: Path) -> None:
    names, data = chain(5)
    tiers = make_tiers(tmp_path)
    assert tiers.save(names, data) == 5
    damage(file_of(tmp_path, names[2]))
    assert tiers.count(digests(names)) == 5, "nobody has looked yet"
    assert (fetched(tiers, names) == data[:2]).all()
    assert not file_of(tmp_path, names[2]).exists() and tiers.count(digests(names)) == 2
    assert tiers.stats().damaged_blocks == 1
    assert tiers.save(names, data) == 5 and (fetched(tiers, names) == data).all(), "it is written again"
    tiers.close()


@pytest.mark.parametrize(
    "change", [{"weights": "v" * 32}, {"stores": ("k_arena 3 2x40 f16",)}, {"layout": "layer"}], ids=str
)
def test_files_of_something_else_are_removed(change: dict[str, Any], tmp_path: Path) -> None:
    names, data = chain(2)
    theirs = make_tiers(tmp_path, identity=other(**change))
    theirs.save(names, data)
    theirs.close()
    ours = make_tiers(tmp_path)
    assert ours.count(digests(names)) == 0, "each identity has a folder of its own"
    file_of(tmp_path, names[0]).parent.mkdir()
    (tmp_path / other(**change).folder_name / file_of(tmp_path, names[0]).name).rename(file_of(tmp_path, names[0]))
    ours.close()
    ours = make_tiers(tmp_path)
    assert ours.count(digests(names)) == 1 and len(fetched(ours, names)) == 0
    assert not file_of(tmp_path, names[0]).exists()
    ours.close()


def test_a_folder_in_place_of_a_file_is_a_miss(tmp_path: Path) -> None:
    names, data = chain(3)
    tiers = make_tiers(tmp_path)
    tiers.save(names, data)
    replace_by_folder(file_of(tmp_path, names[1]))
    assert (fetched(tiers, names) == data[:1]).all()
    assert tiers.save(names, data) == 1, "nothing can be written there"
    assert tiers.stats().disk_writes
    assert file_of(tmp_path, names[1]).is_dir()
    tiers.close()


def test_a_removed_folder_is_made_again(tmp_path: Path) -> None:
    names, data = chain(3)
    tiers = make_tiers(tmp_path)
    tiers.save(names[:2], data[:2])
    for path in (file_of(tmp_path, names[0]), file_of(tmp_path, names[1])):
        path.unlink()
    path.parent.rmdir()
    assert len(fetched(tiers, names)) == 0
    assert tiers.stats().damaged_blocks == 0, "another process may remove files"
    assert tiers.save(names, data) == 3 and (fetched(tiers, names) == data).all()
    tiers.close()


def test_the_disk_keeps_what_was_used_last_within_its_limit(tmp_path: Path) -> None:
    """Over all identities: the files of a model that nobody loads any more make room."""
    old_names, old_data = chain(4, "old")
    old = make_tiers(tmp_path, identity=other(model="old"))
    old.save(old_names, old_data)
    old.close()
    names, data = chain(9)
    limit = 6 * FILE_SIZE
    tiers = make_tiers(tmp_path, disk_bytes=limit)
    tiers.save(names[:3], data[:3])
    assert {block.digest.hex() for block in old_names[:3]} <= files(tmp_path), "the leaf left first"
    fetched(tiers, names[:1])
    tiers.close()
    tiers = make_tiers(tmp_path, disk_bytes=limit)  # the order comes from the times of the files
    tiers.put(names[3:7], data[3:7])
    tiers.flush()
    there = [tiers.count([digest]) for digest in digests(names)]
    assert there == [1, 1, 0, 1, 1, 1, 1, 0, 0]
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) == tiers.stats().disk_bytes <= limit
    assert tiers.save(names, data) == 6, "the first ones: later ones are of no use without them"
    assert (fetched(tiers, names) == data[:6]).all()
    tiers.close()
    small = make_tiers(tmp_path, disk_bytes=FILE_SIZE - 1)
    assert small.save(*chain(1, "new")) == 0 and len(files(tmp_path)) == 6
    small.close()


def test_what_dead_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    names, data = chain(1)
    tiers = make_tiers(tmp_path)
    tiers.save(names, data)
    tiers.close()
    own = tmp_path / IDENTITY.folder_name
    others = [own / "notes.txt", tmp_path / "x.kv", tmp_path / "album" / f"{'0' * 32}.kv", own / "mine.kv"]
    (tmp_path / "album").mkdir()
    for path in (*others, own / ".new-stale", own / ".new-fresh"):
        path.write_bytes(bytes(10_000))
    os.utime(own / ".new-stale", (time.time() - 3600,) * 2)
    tiers = make_tiers(tmp_path, disk_bytes=FILE_SIZE)
    assert not (own / ".new-stale").exists() and (own / ".new-fresh").exists()
    assert tiers.stats().disk_blocks == 1
    tiers.save(*chain(1, "new"))
    assert all(path.exists() for path in others) and not file_of(tmp_path, names[0]).exists()
    tiers.close()


def test_writes_within_an_hour_are_bounded(tmp_path: Path) -> None:
    names, data = chain(12)
    now = [0.0]
    tiers = make_tiers(tmp_path, bytes_per_hour=3 * FILE_SIZE, clock=lambda: now[0])
    written = []
    for hours, first, last in ((0.0, 0, 2), (0.5, 2, 4), (0.99, 4, 6), (1.0, 6, 9), (1.49, 9, 10), (1.5, 10, 12)):
        now[0] = hours * 3600
        tiers.put(names[first:last], data[first:last])
        tiers.flush()
        written.append(sum(tiers.count([digest]) for digest in digests(names)[first:last]))
    assert written == [2, 1, 0, 2, 0, 1]
    assert tiers.stats().dropped_blocks == 12 - 6 and tiers.stats().written_blocks == 6
    assert tiers.save(names, data) == 3, "nothing more may be written"
    tiers.close()


class Stalled:
    """A disk that takes no block until it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        write = BlockFolder.write
        monkeypatch.setattr(BlockFolder, "write", lambda *arguments: self.go.wait(60) and write(*arguments))


def test_a_slow_disk_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "QUEUE_BYTES", 3 * SIZE)
    disk = Stalled(monkeypatch)
    names, data = chain(8)
    tiers = make_tiers(tmp_path)
    tiers.put(names, data)
    assert tiers.stats().dropped_blocks == 5 and tiers.stats().waiting_bytes == 3 * SIZE
    assert (fetched(tiers, names) == data[:3]).all(), "what waits can be read"
    saved: list[int] = []
    saver = threading.Thread(target=lambda: saved.append(tiers.save(names, data)))
    saver.start()
    disk.go.set()
    saver.join(60)
    assert saved == [8] and tiers.stats().waiting_bytes == 0, "save waits for its turn"
    tiers.close()


_FULL = """
import resource
from pathlib import Path
from typing import Any
from mlxr_tests.kv_blocks import *
resource.setrlimit(resource.RLIMIT_FSIZE, (2000,) * 2)
warnings = []
names, data = chain(6)
tiers = make_tiers(Path({folder!r}), memory_blocks=1, warn=warnings.append)
assert (fetched(tiers, names[:2]) == data[:2]).all()
tiers.put(names[2:], data[2:])
tiers.flush()
tiers.put(*chain(3, "other"))
assert tiers.save(names, data) == 2
tiers.flush()
assert not tiers.stats().disk_writes and tiers.count_in_memory(digests(chain(3, "other")[0])[2:]) == 1
assert (fetched(tiers, names) == data[:2]).all(), "what is there is still read"
tiers.close()
print(*warnings, sep="\\n")
"""


def in_process(program: str, **options: object) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program.format(**options)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_full_disk_turns_writing_off_with_one_warning(tmp_path: Path) -> None:
    tiers = make_tiers(tmp_path)
    names, data = chain(2)
    tiers.save(names, data)
    tiers.close()
    output, _ = in_process(_FULL, folder=str(tmp_path)).communicate(timeout=60)
    assert output.count("\n") == 1, output
    assert output.startswith(f"{tmp_path}: File too large; no more blocks") and "7.6 KiB of them are" in output
    assert len(files(tmp_path)) == 2 and not list(tmp_path.glob("*/.*")), "nothing is left half-written"


def test_a_folder_that_cannot_be_made_turns_writing_off_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    warnings: list[str] = []
    tiers = make_tiers(tmp_path / "file", warn=warnings.append)
    for root in ("a", "b"):
        tiers.put(*chain(2, root))
        tiers.flush()
    tiers.close()
    assert len(warnings) == 1 and "Not a directory" in warnings[0]


_WRITER = """
from pathlib import Path
from typing import Any
from mlxr_tests.kv_blocks import *
for turn in range(30):
    tiers = make_tiers(Path({folder!r}), memory_blocks=3, disk_bytes={disk_bytes})
    for root in ("left", "right", "left"):
        names, data = chain(12, root)
        tiers.put(names[::-1], data[::-1])
        got = fetched(tiers, names)
        assert (got == data[:len(got)]).all()
    tiers.close()
    assert tiers.stats().damaged_blocks == 0
print("fine")
"""


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    """Each writes the same blocks and removes those of the other, whose limit is another one."""
    processes = [in_process(_WRITER, folder=str(tmp_path), disk_bytes=n * FILE_SIZE) for n in (9, 18)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["fine\n"] * 2
    tiers = make_tiers(tmp_path)
    for root in ("left", "right"):
        names, data = chain(12, root)
        for block, row in zip(names, data, strict=True):
            got = fetched(tiers, [block])
            assert (got == row).all() and len(got) == tiers.count([block.digest])
    assert tiers.stats().damaged_blocks == 0
    tiers.close()


def test_files_of_another_process_are_found_by_and_by(tmp_path: Path) -> None:
    names, data = chain(4)
    ours = make_tiers(tmp_path, disk_bytes=32 * FILE_SIZE)
    theirs = make_tiers(tmp_path)
    theirs.save(names, data)
    theirs.close()
    assert ours.count(digests(names)) == 0
    for number in range(3):  # more than a sixteenth of the limit
        ours.save(*chain(1, str(number)))
    ours.save(*chain(1, "last"))
    assert (fetched(ours, names) == data).all()
    ours.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_shrinking_gives_memory_back_to_the_system(tmp_path: Path) -> None:
    identity = other(block_bytes=1 << 20)
    names, data = chain(64, identity=identity)
    tiers = make_tiers(None, memory_blocks=64, identity=identity)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    tiers.put(names, data)
    before = resident()
    assert tiers.shrink(47 * 2**20 + 1) == 48 << 20
    assert before - resident() > 40 << 20
    assert tiers.stats().memory_bytes == 16 << 20 and (fetched(tiers, names[48:]) == data[48:]).all()
    assert tiers.shrink(1 << 40) == 16 << 20 and tiers.shrink(1) == 0
    tiers.close()


def test_reading_is_compared_with_computing() -> None:
    names, data = chain(2)
    tiers = make_tiers(None, memory_blocks=2)
    assert tiers.worth(8, 2 * SIZE, from_disk=True), "nothing is measured yet"
    tiers.put(names, data)
    fetched(tiers, names)
    tiers.computed(1, 10.0)
    assert tiers.worth(8, 2 * SIZE, from_disk=False) and tiers.worth(8, 2 * SIZE, from_disk=True)
    for _ in range(200):
        tiers.computed(10**9, 1e-6)
    assert not tiers.worth(8, 2 * SIZE, from_disk=False) and tiers.worth(8, 2 * SIZE, from_disk=True)
    asked = [tiers.worth(8, 2 * SIZE, from_disk=False) for _ in range(100)]
    assert asked.count(True) == 3, "now and then it is tried again"
    tiers.close()


def test_several_threads_read_from_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, data = chain(7)
    tiers = make_tiers(tmp_path)
    tiers.save(names, data)
    read, pair = disk_tier.read_block, threading.Barrier(2)

    def slowly(path: Path, identity: BlockIdentity, digest: bytes, row: Bytes) -> bool:
        if digest == names[0].digest:
            time.sleep(0.01)
        else:
            pair.wait(60)  # for another thread that reads
        return read(path, identity, digest, row)

    monkeypatch.setattr(disk_tier, "read_block", slowly)
    assert (fetched(tiers, names) == data).all()
    tiers.close()


def test_an_error_of_a_reader_reaches_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, data = chain(3)
    tiers = make_tiers(tmp_path)
    tiers.save(names, data)

    def fail(*_: object) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(disk_tier, "read_block", fail)
        with pytest.raises(MemoryError):
            fetched(tiers, names)
    assert (fetched(tiers, names) == data).all()
    tiers.close()


_KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from typing import Any
from mlxr_tests.kv_blocks import *
folder, random = Path({folder!r}), random.Random(0)
for kill in range({kills}):
    reader, writer = os.pipe()
    if not (child := os.fork()):
        tiers = make_tiers(folder, disk_bytes={disk_bytes})
        for number in range(10_000):
            names, data = chain(10, str(number % 7))
            tiers.put(names[::-1], data[::-1])
            tiers.flush()
            os.write(writer, b"!")
        os._exit(0)
    os.read(reader, 1)
    os.close(reader), os.close(writer)
    time.sleep(random.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for path in folder.glob("*/.new-*"):  # as if the next start were a minute later
        os.utime(path, (0, 0))
    tiers = make_tiers(folder, disk_bytes={disk_bytes})
    assert not list(folder.glob("*/.new-*"))
    for number in range(7):
        names, data = chain(10, str(number))
        got = fetched(tiers, names)
        assert (got == data[:len(got)]).all()
        print(len(got), tiers.count(digests(names)))
    tiers.close()
"""


@pytest.mark.parametrize("kills", [pytest.param(100, marks=pytest.mark.long), 5])
def test_a_killed_process_leaves_nothing_wrong(kills: int, tmp_path: Path) -> None:
    process = in_process(_KILLED, folder=str(tmp_path), kills=kills, disk_bytes=40 * FILE_SIZE)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    lines = [line.split() for line in output.splitlines()]
    assert len(lines) == 7 * kills and all(got == count for got, count in lines), output
    assert np.sum([int(got) for got, _ in lines]) > kills, "some blocks came back"
