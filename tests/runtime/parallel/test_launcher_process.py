"""A process named mlx.launch runs only where a core is idle, once a rank has asked for that; others are left alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
