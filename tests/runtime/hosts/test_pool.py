"""The thread pool of templates/cpu/pool.h, driven by a C program: right with and without sanitizers, on a busy machine.

Times are bounds for a pool that has stopped, not for a fast one.
"""

import functools
import itertools
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import pytest

from mlxr_tests.few import covering, few

DRIVER = Path(__file__).with_name("pool_driver.c")
WAITS = {"futex": (), "condition variable": ("-DMLXR_NO_FUTEX",)}
TIMEOUT_S = 120


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="mlxr-pool-")


@functools.cache
def driver(*flags: str) -> str:
    """The driver, built with these flags."""
    if shutil.which("cc") is None:
        pytest.skip("there is no system C compiler")
    program = Path(_folder().name) / str(abs(hash(flags)))
    headers = str(files("mlxr.templates").joinpath("cpu"))
    command = ["cc", "-std=gnu11", "-Wall", "-Werror", *flags, "-pthread", "-I", headers, str(DRIVER)]
    result = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)
    if result.returncode and any(flag.startswith("-fsanitize") for flag in flags):
        pytest.skip(f"this compiler lacks the sanitizer's runtime: {result.stderr.strip()[-200:]}")
    assert result.returncode == 0, result.stderr
    return str(program)


def drive(program: Sequence[str], *numbers: int) -> "subprocess.Popen[str]":
    command = [*program, *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: "subprocess.Popen[str]") -> None:
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        pytest.fail(f"the pool has stopped: {said}")
    assert process.returncode == 0 and said.strip() == "0", said[-4000:]


THREADS = list(itertools.product([1, 2, 3, 5], WAITS))


@pytest.mark.parametrize(
    ("threads", "wait"), few(THREADS, [case for case in covering(THREADS, lambda case: case) if case[0] < 5])
)
def test_a_barrier_holds_until_all_have_come(threads: int, wait: str) -> None:
    program = driver("-O3", *WAITS[wait])
    finish(drive([program], threads, 50, 100, 2, 0))
    finish(drive([program], threads, 6, 40, 2, 1500))  # long enough to sleep, between steps and within


@pytest.mark.parametrize("wait", WAITS)
def test_more_threads_than_cpus_and_two_processes_at_once(wait: str) -> None:
    program = driver("-O3", *WAITS[wait])
    for process in [drive([program], 8, 20, 30, 2, 0) for _ in range(2)]:
        finish(process)


def test_a_thread_that_found_its_cpu_crowded_sleeps_and_does_not_yield() -> None:
    finish(drive([driver("-O3", "-Dsched_yield=slow_yield")], 2, 6, 20, 1, 1500))


def test_many_models_come_and_go() -> None:
    finish(drive([driver("-O3")], 3, 1, 1, 300, 0))
    finish(drive([driver("-O3")], 4, 1, 0, 100, 0))


def _without_randomisation() -> list[str]:
    """Older thread sanitizers know few places where a program may lie."""
    tool = shutil.which("setarch")
    return [tool, platform.machine(), "-R"] if tool else []


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("threads", [2, 3])
def test_the_thread_sanitizer_finds_no_race(threads: int, wait: str) -> None:
    program = driver("-O1", "-g", "-fsanitize=thread", *WAITS[wait])
    command = [*_without_randomisation(), program]
    finish(drive(command, threads, 20, 50, 2, 0))
    finish(drive(command, threads, 4, 12, 2, 1500))


def test_the_thread_sanitizer_would_find_one() -> None:
    flags = ("-O1", "-g", "-fsanitize=thread")
    program = driver(*flags)  # skips without the runtime
    include = '#include "pool.h"\n'
    broken = Path(_folder().name) / "broken.c"
    broken.write_text(
        DRIVER.read_text("utf-8").replace(include, f"{include}#define mlxr_barrier(w) (void)(w)\n"), "utf-8"
    )
    headers = str(files("mlxr.templates").joinpath("cpu"))
    command = ["cc", "-std=gnu11", *flags, "-pthread", "-I", headers, str(broken), "-o", f"{program}-broken"]
    subprocess.run(command, check=True, capture_output=True)
    process = drive([*_without_randomisation(), f"{program}-broken"], 2, 20, 50, 1, 0)
    said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0 and "data race" in said


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not bind processes to CPUs")
def test_all_threads_on_one_cpu() -> None:
    program = driver("-O3")
    cpu = str(min(os.sched_getaffinity(0)))
    tool = shutil.which("taskset")
    if tool is None:
        pytest.skip("there is no taskset")
    finish(drive([tool, "-c", cpu, program], 4, 20, 20, 2, 0))
