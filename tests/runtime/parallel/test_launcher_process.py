"""A process named mlx.launch runs only where a core is idle, and sleeps; others are left alone."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

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
