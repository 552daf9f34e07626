"""A process named mlx.launch runs only where a core is idle, and its ranks end with it; others are left alone."""

import os
import select
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

LAUNCHER = """
import subprocess, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""
RANK = """
import os
from mlxr.runtime.parallel.launcher_process import give_way_to_ranks
told = give_way_to_ranks()
parent = os.getppid()
print(told, *(os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{parent}/task")))
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
WATCHING_RANK = """
import signal, time
from mlxr.runtime.parallel.launcher_process import watch_launcher
def end(number, frame):
    print("ends", flush=True)
    raise SystemExit
signal.signal(signal.SIGTERM, end)
watches = watch_launcher()
print(watches, flush=True)
time.sleep(20 if watches else 1)
"""
PATHS = os.pathsep.join(path for path in sys.path if path)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux")
@pytest.mark.parametrize(("name", "expected"), [("mlx.launch", "True 5 5"), ("launch", "False 0 0")])
def test_policy(name: str, expected: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(LAUNCHER)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, str(script), RANK], capture_output=True, text=True, env=environ, check=False, timeout=60
    )
    assert done.stdout.strip() == expected, done.stderr


OF_RANKS = """
import os, sys
from mlxr_tests.ranks import run_ranks
options = ["--host", "cpu", "--prompt", "Once", "--max-tokens", "2"]
first, _ = run_ranks(2, ["-m", "mlxr.cli", "run", sys.argv[1], *options])
print(first.code, os.sched_getscheduler(0))
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux")
def test_ranks_ask_as_they_load(tmp_path: Path) -> None:
    script = tmp_path / "mlx.launch"
    script.write_text(OF_RANKS)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, str(script), str(TINY)], capture_output=True, text=True, env=environ, check=False, timeout=120
    )
    assert done.stdout.split() == ["0", str(os.SCHED_IDLE)], done.stderr


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux")
def test_what_would_be_typed_waits() -> None:
    """The launcher waits until a rank's input can be written to, which it then cannot."""
    ours, theirs = os.pipe()
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    code = "from mlxr.runtime.parallel.launcher_process import fill_input; fill_input()"
    assert select.select([], [theirs], [], 0)[1]
    subprocess.run([sys.executable, "-c", code], stdin=ours, env=environ, check=True, timeout=60)
    assert not select.select([], [theirs], [], 0)[1]
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, env=environ, check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize(("name", "expected"), [("mlx.launch", "True\nends\n"), ("launch", "False\n")])
def test_parent_is_killed(name: str, expected: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(PARENT)
    command, environ = [sys.executable, str(script), WATCHING_RANK], os.environ | {"PYTHONPATH": PATHS}
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
