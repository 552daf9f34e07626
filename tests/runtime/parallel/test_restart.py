"""A process that is started again: after which ends, and that signals reach it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlxr_tests.few import few

PARENT = "import sys; from mlxr.runtime.parallel.restart import keep_running; sys.exit(keep_running(sys.argv[1:]))"
CHILD = """
import os, signal, sys, time
from pathlib import Path
file = Path(sys.argv[1])
starts = file.read_text() if file.exists() else ""
file.write_text(starts + "x")
end = sys.argv[2 + len(starts)]
if end in ("wait", "stop"):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
    print("waits", flush=True)
    if end == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)
if end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(end))
"""


def start(file: Path, *ends: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, sys.executable, "-c", CHILD, str(file), *ends],
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("ends", "code"),
    few([(("75", "1"), 1), (("kill", "75", "0"), 0)], [(("75", "1"), 1)]),
)
def test_what_is_started_again(ends: tuple[str, ...], code: int, tmp_path: Path) -> None:
    process = start(tmp_path / "starts", *ends)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code and (tmp_path / "starts").read_text() == "x" * len(ends)
    assert err.count("it is started again in") == len(ends) - 1


@pytest.mark.parametrize("end", ["wait", "stop"])
def test_a_signal_ends_both(end: str, tmp_path: Path) -> None:
    process = start(tmp_path / "starts", end)
    assert process.stdout is not None and process.stdout.readline() == "waits\n"
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 3 and time.monotonic() - begin < 30
    assert (tmp_path / "starts").read_text() == "x"
