"""A rank ends when mlx.launch, which started it, has been killed; what others started goes on."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mlxr_tests.few import few
from mlxr_tests.ranks import free_ports
from mlxr_tests.serve_process import wait_for
from mlxr_tests.storyteller import TINY

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
RANK = """
import signal, time
from mlxr.runtime.parallel.launcher_watch import watch_launcher
def end(number, frame):
    print("ends", flush=True)
    raise SystemExit
signal.signal(signal.SIGTERM, end)
watches = watch_launcher()
print(watches, flush=True)
time.sleep(20 if watches else 1)
"""
PATHS = os.pathsep.join(path for path in sys.path if path)


@pytest.mark.parametrize(("name", "expected"), [("mlx.launch", "True\nends\n"), ("launch", "False\n")])
def test_parent_is_killed(name: str, expected: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(PARENT)
    command, environ = [sys.executable, str(script), RANK], os.environ | {"PYTHONPATH": PATHS}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as parent:
        assert parent.stdout is not None
        first = parent.stdout.readline()
        parent.kill()
        assert first + parent.stdout.read() == expected, "the rank holds the pipe until it ends"


NOTED = """
import os, sys
from pathlib import Path
Path(sys.argv[1], os.environ["MLX_RANK"]).write_text(str(os.getpid()))
from mlxr.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mlx.launch", path=str(Path(sys.executable).parent)) is None, reason="no mlx.launch")
@pytest.mark.parametrize("restart", few([False, True], [False]))
def test_no_rank_of_a_server_is_left(restart: bool, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    serve = ["serve", "--distributed", str(TINY), "--host", "cpu", "--threads", "1", "--port", str(port)]
    command = [Path(sys.executable).with_name("mlx.launch"), "-n", "2", "--env", f"PYTHONPATH={PATHS}", "--"]
    command += [sys.executable, "-c", NOTED, str(tmp_path), *serve, *(["--restart"] if restart else [])]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out) as launcher:
        wait_for(lambda: "serving" in log.read_text())
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(20)
        processes = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
        wait_for(lambda: not any(map(lives, processes)), 20)


def lives(process: int) -> bool:
    """Whether it is there, and has not ended with nobody who asks how."""
    ended = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return ended.stdout.strip() != "" and not ended.stdout.startswith("Z")
