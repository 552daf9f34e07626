"""From text to library: which compiler, the cache and its damage, and everything that a compiler can do wrong."""

import ctypes
import math
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cpu import build, processor, toolchain
from mlxr.runtime.hosts.cpu.build import load_library
from mlxr.runtime.hosts.run_compiler import run_compiler, zig_executable
from mlxr_tests.few import few

TEXT = '__attribute__((visibility("default"))) int answer(void) { return 42; }\n'
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no system C compiler")


def answer(text: str = TEXT) -> int:
    return int(load_library(text, "model").answer())


def test_a_library_is_compiled_once(cache, runs) -> None:
    assert answer() == answer() == 42
    assert len(runs) == 1
    assert len(list(cache.glob("model-*.so"))) == 1
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def test_each_thing_that_decides_makes_another_entry(cache, runs, monkeypatch: pytest.MonkeyPatch) -> None:
    answer()
    answer(f"{TEXT}// changed\n")
    monkeypatch.setenv("MLXR_CPU_CFLAGS", "-DMLXR_MORE=1 '-DMLXR_WORDS=a b'")
    answer()
    assert "-DMLXR_WORDS=a b" in runs[-1]
    monkeypatch.delenv("MLXR_CPU_CFLAGS")
    monkeypatch.setattr(build, "processor_identity", lambda: "another CPU")
    answer()
    assert len(runs) == 4
    assert len(list(cache.glob("*.so"))) == 4


def test_flags_that_are_no_command_line(cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_CPU_CFLAGS", "-O2 'open")
    with pytest.raises(HostError, match=r"MLXR_CPU_CFLAGS=.* is not a command line"):
        answer()


def test_amx_that_linux_refuses_is_not_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(processor, "_cpuinfo", lambda: {"flags": "avx2 amx_tile"})
    for allowed, expected in ((True, ["-march=native"]), (False, ["-march=native", "-mno-amx-tile"])):
        monkeypatch.setattr(processor, "_may_use_amx", lambda allowed=allowed: allowed)
        processor.features.cache_clear()
        processor.native_flags.cache_clear()
        assert list(processor.native_flags())[:2] == expected
    processor.features.cache_clear()
    processor.native_flags.cache_clear()


# Compilers


def test_no_compiler(cache, only) -> None:
    with pytest.raises(
        HostError, match=r"found none \(\$CC, cc, clang\); this installs one: pip install 'mlxr\[cpu\]'"
    ):
        answer()


@pytest.mark.skipif(zig_executable() is None, reason="needs the ziglang wheel")
def test_the_compiler_that_pip_installs(cache, runs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On x86-64 Linux it makes no C library of its own first, which would take 5 s; functions are found without."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "zig"))
    more = "#include <math.h>\n#include <pthread.h>\n"
    more += '__attribute__((visibility("default"))) double wave(double x) { return sin(x) + logf(x); }\n'
    more += '__attribute__((visibility("default"))) int own(void) { return pthread_equal(pthread_self(), 0); }\n'
    library = load_library(more + TEXT, "model")
    library.wave.restype, library.wave.argtypes = ctypes.c_double, [ctypes.c_double]
    assert library.answer() == 42 and library.own() == 0
    assert library.wave(2.0) == pytest.approx(math.sin(2) + math.log(2))
    assert runs[0][:2] == [zig_executable(), "cc"]
    if sys.platform == "linux" and processor.platform.machine() == "x86_64":
        assert not list((tmp_path / "zig").rglob("*compiler_rt*"))
        # Told to link without the C library, it finds no headers where the system has none: Debian without libc6-dev.
        assert not [command for command in runs if {"-nostdlib", "model.c"} <= set(command)]


@needs_cc
def test_the_order_of_compilers(cache, only, runs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("clang", "cc", "mine"):
        only(name, f'exec "$REAL" "$@" # {name}')
    answer()
    monkeypatch.setenv("CC", "mine -DMINE")
    answer()
    assert [Path(run[0]).name for run in runs] == ["cc", "mine"]
    assert "-DMINE" in runs[1]


@needs_cc
def test_one_program_by_two_names_is_tried_once(cache, only, runs) -> None:
    program = only("cc", "exit 3")
    (program.parent / "clang").symlink_to(program)
    with pytest.raises(HostError, match="it ended with code 3"):
        answer()
    assert len(runs) == 1


@needs_cc
@pytest.mark.parametrize(
    "script", ["exit 1", "echo 'model.c:1: error: what is this' >&2; exit 1", "kill -SEGV $$", "exit 0"]
)
def test_a_compiler_that_cannot_build_it_is_passed_over(cache, only, runs, caplog, script: str) -> None:
    only("cc", script)
    only("clang", 'exec "$REAL" "$@"')
    assert answer() == answer() == 42
    assert [Path(run[0]).name for run in runs] == ["cc", "clang"], "the second start finds the library"
    notes = caplog.messages
    assert len(notes) == 1 and notes[0].startswith("note: cc cannot build model (") and "using clang" in notes[0]


@needs_cc
@pytest.mark.parametrize(("value", "note"), [("false", "cannot build model"), ("no-such-compiler", "does not name a")])
def test_a_broken_cc_variable_is_told_each_time(cache, runs, caplog, monkeypatch, value: str, note: str) -> None:
    monkeypatch.setenv("CC", value)
    assert answer() == answer() == 42
    assert caplog.text.count(note) == 2
    assert len([run for run in runs if Path(run[0]).name != "false"]) == 1


def test_a_cc_variable_that_is_no_command_line(cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc 'open")
    with pytest.raises(HostError, match=r"CC=\"cc 'open\" is not a command line"):
        answer()


@needs_cc
def test_a_text_that_does_not_compile(cache, only) -> None:
    only("cc", 'exec "$REAL" "$@"')
    with pytest.raises(HostError, match="no C compiler here can build model") as caught:
        answer("int answer(void) { return x; }\n" + "int a = y;\n" * 500)
    message = str(caught.value)
    assert "model.c:1:" in message and "-O2" in message and "-o model.so" in message
    assert len(message) < 8000 and "lines in all)" in message
    assert "this installs another compiler: pip install 'mlxr[cpu]'" in message
    assert not list(cache.glob("*.so"))


@needs_cc
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -KILL $$", r"it was killed by signal 9 \(Killed\)"),
        ("echo 'cc1: fatal error: No space left on device' >&2; exit 1", "No space left on device"),
        ("exit 7", "it ended with code 7"),
        ("exit 0", "it made no library"),
    ],
)
def test_what_compilers_die_of(cache, only, script: str, message: str) -> None:
    only("cc", script)
    with pytest.raises(HostError, match=message):
        answer()


def test_a_program_that_cannot_be_started(cache, only) -> None:
    only("cc", "").write_bytes(b"\x7fELF no program")
    with pytest.raises(HostError, match="it cannot be started: Exec format error"):
        answer()


def test_a_compiler_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"sleep 600 & echo $! > '{pid}'; wait"
    ticks: list[float] = []
    started = time.monotonic()
    said = run_compiler(["sh", "-c", script], tmp_path, timeout_s=1.2, tick=ticks.append)
    assert said == "it did not finish within 1 s" and time.monotonic() - started < 30
    assert ticks and ticks == sorted(ticks)
    child = Path(f"/proc/{pid.read_text().strip()}/stat")
    for _ in range(100):
        if not child.exists() or child.read_text().split(")")[1].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the compiler's child still runs")


def test_zig_keeps_its_files_where_it_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside the working folder, if the user's folder cannot be made."""
    work, home = tmp_path / "build", tmp_path / "home"
    work.mkdir()
    for name in ("XDG_CACHE_HOME", "ZIG_GLOBAL_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)

    def told() -> str | None:
        return run_compiler(["sh", "-c", 'echo "zig: $ZIG_GLOBAL_CACHE_DIR" >&2; exit 1'], work)

    monkeypatch.setenv("HOME", str(home))
    assert told() == "zig:"
    home.write_text("no folder")
    assert told() == f"zig: {tmp_path / 'zig'}"
    monkeypatch.delenv("HOME")
    assert told() == f"zig: {tmp_path / 'zig'}"
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", "/elsewhere")
    assert told() == "zig: /elsewhere"


def test_an_interrupt_ends_the_compiler(tmp_path: Path) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_compiler(["sleep", "600"], tmp_path, tick=interrupt)
    assert time.monotonic() - started < 30


def test_who_waits_is_told(cache, only) -> None:
    only("cc", 'sleep 1.2; exec "$REAL" "$@"')
    told: list[tuple[str, float]] = []
    load_library(TEXT, "model", lambda name, seconds: told.append((name, seconds)))
    assert [name for name, _ in told] == ["cc"] * len(told) and told
    told.clear()
    load_library(TEXT, "model", lambda name, seconds: told.append((name, seconds)))
    assert not told


# The cache


@pytest.mark.parametrize(
    "damage", few(["truncated", "flipped", "empty", "no hash", "a folder"], ["flipped", "a folder"])
)
def test_a_damaged_entry_is_built_anew(cache, runs, damage: str) -> None:
    """In another process each time: a library that is loaded stays so, whatever becomes of its file."""
    program = (
        "import sys\nfrom mlxr.runtime.hosts.cpu.build import load_library\n"
        f"print(load_library({TEXT!r}, 'model').answer())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def run() -> str:
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert run() == "42"
    (entry,) = cache.glob("model-*.so")
    content = entry.read_bytes()
    if damage == "truncated":
        os.truncate(entry, len(content) // 2)
    elif damage == "flipped":
        entry.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    elif damage == "empty":
        entry.write_bytes(b"")
    elif damage == "no hash":
        (cache / "sha256" / entry.name).unlink()
    else:
        entry.unlink()
        entry.mkdir()
    assert run() == "42"
    if damage != "a folder":
        assert entry.read_bytes() == content


def test_a_library_built_for_another_cpu_is_never_loaded(cache, runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even under the name of ours, with a hash that is right."""
    with monkeypatch.context() as other:
        other.setattr(build, "processor_identity", lambda: "another CPU")
        answer()
    (foreign,) = cache.glob("*.so")
    answer()
    (ours,) = set(cache.glob("*.so")) - {foreign}
    build._cache.publish(foreign, ours)
    assert build._cache.read(ours) == foreign.read_bytes()
    answer()
    assert len(runs) == 3
    assert ours.read_bytes() != foreign.read_bytes()


def test_the_identity_of_this_cpu() -> None:
    identity = processor.processor_identity()
    assert processor.platform.machine() in identity
    if sys.platform == "linux":
        assert "flags" in identity or "Features" in identity
        assert "MHz" not in identity, "it changes"


def test_a_cache_that_cannot_be_written_is_worth_a_note(cache, runs, caplog, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "file"))
    assert answer() == answer() == 42
    assert len(runs) == 2
    assert caplog.text.count("note: not cached: cpu: cannot write to the cache folder") == 2


def test_a_full_disk_is_worth_a_note(cache, runs, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mlxr.runtime.hosts.library_cache.shutil.copyfileobj", full)
    assert answer() == 42
    assert "note: not cached: cpu: cannot write" in caplog.text
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_full_temporary_folder(cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(HostError, match=r"cannot compile in the temporary folder .*gone: .*; set TMPDIR"):
        answer()


def test_a_library_that_cannot_be_loaded_from_the_cache(cache, runs, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the folder does not allow programs to run."""
    load = ctypes.CDLL

    def refuse(path, **options):
        if str(path).startswith(str(cache)):
            raise OSError("failed to map segment from shared object")
        return load(path, **options)

    monkeypatch.setattr(build.ctypes, "CDLL", refuse)
    assert answer() == 42
    assert "set MLXR_CACHE_DIR to a folder that allows programs to run" in caplog.text


def test_two_processes_compile_the_same_text_at_once(cache) -> None:
    script = textwrap.dedent(f"""
        from mlxr.runtime.hosts.cpu.build import load_library
        print(load_library({TEXT!r}, "model").answer())
    """)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(3)
    ]
    for child in children:
        said, _ = child.communicate(timeout=300)
        assert (child.returncode, said) == (0, b"42\n")
    (entry,) = cache.glob("*.so")
    assert build._cache.read(entry) is not None
    assert not [path for path in cache.rglob(".*")]


def test_two_threads_compile_the_same_text_at_once(cache) -> None:
    found: list[int] = []
    workers = [threading.Thread(target=lambda: found.append(answer())) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [42] * 3


def test_identities_follow_the_program(only, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = only("cc", "exit 1")
    before = toolchain.find_compilers()
    program.write_text("#!/bin/sh\nexit 2  # a new version\n")
    after = toolchain.find_compilers()
    assert before[0].command == after[0].command and before[0].identity != after[0].identity
    wrapper = only("wrap", 'exec "$@"')
    monkeypatch.setenv("CC", f"'{wrapper}' cc")
    chosen = toolchain.find_compilers()[0]
    assert chosen.is_chosen and after[0].identity in chosen.identity
