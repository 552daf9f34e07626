"""Workers of pytest-xdist take turns at the GPUs: tests/conftest.py says which one each sees."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = "import conftest, os; print(os.environ.get('CUDA_VISIBLE_DEVICES', 'as it was'))"


@pytest.mark.parametrize(
    ("worker", "visible", "gpus", "expected"),
    [
        ("gw0", None, 4, "0"),
        ("gw6", None, 4, "2"),
        ("gw5", "3,7", 4, "7"),
        ("gw2", None, 0, "as it was"),
        ("gw1", "", 4, ""),
        ("", None, 4, "as it was"),
        ("", "3,7", 4, "3,7"),
    ],
)
def test_each_worker_sees_one(tmp_path: Path, worker: str, visible: str | None, gpus: int, expected: str) -> None:
    lines = "".join(f"echo 'GPU {number}: one'\n" for number in range(gpus))
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}")
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTEST_XDIST_WORKER", "CUDA_VISIBLE_DEVICES")}
    environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[1])}
    environment |= {"PYTEST_XDIST_WORKER": worker} if worker else {}
    environment |= {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert shown.strip() == expected
