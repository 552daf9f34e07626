"""tests/gpu_sanitize.sh with a sanitizer that plays what each process does: counts, findings, statuses, interrupts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "gpu_sanitize.sh"
SANITIZER = """#!/usr/bin/env bash
echo "$* poison=$MLXR_TEST_POISON mlx=$MLXR_TEST_MLX steps=$MLXR_TEST_STEPS" >"$PLAYED/options"
while [ "$1" != python3 ]; do [ "$1" = --log-file ] && log="${2//%p/$$}"; shift; done
while [ "$1" != --share ]; do shift; done
echo "$2 $CUDA_VISIBLE_DEVICES ${*:3}" >"$PLAYED/share.${2%/*}"
source "$PLAYED/${2%/*}"
"""
CLEAN = 'echo "========= ERROR SUMMARY: 0 errors" >"$log"'
FOUND = """printf '========= Invalid __global__ read\\n========= ERROR SUMMARY: 1 error\\n' >"$log\""""
INTERRUPTED = f"""
python3 -c 'import signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler)
try: open(sys.argv[1], "w").close(); time.sleep(60)
except KeyboardInterrupt: print("1 passed, 40 deselected in 0.50s")' "$log.ready"
{CLEAN}
exit 2
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="NVIDIA's compute-sanitizer is for Linux here")


@pytest.fixture
def played(tmp_path: Path) -> Path:
    """A folder for what each process does, with the programs that the script calls."""
    fakes = {"compute-sanitizer": SANITIZER, "nvidia-smi": "#!/bin/sh\necho 'GPU 0: one'\necho 'GPU 1: another'\n"}
    for name, text in fakes.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def start(
    played: Path, *processes: str, tool: str = "memcheck", arguments: tuple[str, ...] = ()
) -> "subprocess.Popen[str]":
    for index, text in enumerate(processes):
        (played / str(index)).write_text(text)
    environment = os.environ | {"PATH": f"{played}:{os.environ['PATH']}", "PLAYED": str(played), "TMPDIR": str(played)}
    command = ["bash", str(SCRIPT), tool, str(len(processes)), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_counts(played: Path) -> None:
    texts = [
        f"{CLEAN}\necho '{total}'"
        for total in ("=== 3 passed, 1 skipped, 9 deselected in 1.25s ===", "2 skipped in 0.10s")
    ]
    script = start(played, *texts, f"{CLEAN}\necho 'no tests ran in 0.10s'\nexit 5", arguments=("--repeat", "2"))
    output, _ = script.communicate(timeout=60)
    processes, tests = output.split("; ")
    assert processes == "memcheck: 3 of 3 processes without a finding, 0 did not end by themselves"
    assert tests == "tests: 3 passed, 0 failed, 3 skipped\n"
    assert script.returncode == 0
    shares = [(played / f"share.{index}").read_text() for index in range(3)]
    texts = "--deselect tests/kernels/test_cuda_texts.py --deselect tests/kernels/test_cuda_step_texts.py"
    assert shares == [f"{index}/3 {index % 2} {texts} --repeat 2 tests/kernels\n" for index in range(3)]


@pytest.mark.parametrize(
    ("tool", "own", "settings"),
    [
        ("memcheck", "", "poison= mlx= steps="),
        ("racecheck", "", "poison= mlx= steps=4"),
        ("initcheck", " --check-api-memory-access no", "poison=0 mlx=0 steps="),
    ],
)
def test_each_tool_has_its_options(played: Path, tool: str, own: str, settings: str) -> None:
    start(played, CLEAN, tool=tool).communicate(timeout=60)
    options = (played / "options").read_text()
    assert options.startswith(f"--tool {tool} --target-processes all --print-limit 20{own} --log-file ")
    assert options.endswith(f" tests/kernels {settings}\n")


def test_the_worst_status_counts(played: Path) -> None:
    failed = (
        f"{CLEAN}\necho 'FAILED tests/kernels/test_it.py::test_it'\necho '1 failed, 4 passed, 1 error in 1.00s'\nexit 1"
    )
    script = start(played, failed, "echo dead\nexit 139", CLEAN)
    output, _ = script.communicate(timeout=60)
    assert "FAILED tests/kernels/test_it.py::test_it\ndead\n" in output
    assert "2 of 3 processes without a finding, 1 did not end by themselves; tests: 4 passed, 2 failed" in output
    assert script.returncode == 139


def test_findings_are_shown(played: Path) -> None:
    script = start(played, f"{CLEAN}\nexit 1", FOUND)
    output, _ = script.communicate(timeout=60)
    assert "memcheck: 1 of 2 processes without a finding" in output
    assert output.endswith("========= Invalid __global__ read\n========= ERROR SUMMARY: 1 error\n")
    assert script.returncode == 9


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_reach_all_processes(played: Path, number: signal.Signals) -> None:
    script = start(played, INTERRUPTED, INTERRUPTED)
    deadline = time.monotonic() + 30
    while len(list(played.glob("*/*.ready"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    script.send_signal(number)
    output, _ = script.communicate(timeout=30)
    assert "2 of 2 processes without a finding, 2 did not end by themselves; tests: 2 passed" in output
    assert script.returncode == 2
