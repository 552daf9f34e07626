"""Workers of pytest-xdist take turns at the GPUs: tests/conftest.py says which one each sees."""

import json
import os
import subprocess
import sys
from pathlib import Path

SHOW = """
import importlib, json, os, sys
for environment in json.loads(sys.argv[1]):
    os.environ.pop("PYTEST_XDIST_WORKER", None)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ |= environment
    importlib.reload(sys.modules["conftest"]) if "conftest" in sys.modules else importlib.import_module("conftest")
    print(os.environ.get("CUDA_VISIBLE_DEVICES", "as it was"))
"""
CASES: list[tuple[str, str | None, int, str]] = [
    ("gw0", None, 4, "0"),
    ("gw6", None, 4, "2"),
    ("gw5", "3,7", 4, "7"),
    ("gw2", None, 0, "as it was"),
    ("gw1", "", 4, ""),
    ("", None, 4, "as it was"),
    ("", "3,7", 4, "3,7"),
]


def test_each_worker_sees_one(tmp_path: Path) -> None:
    environments = []
    for worker, visible, gpus, _ in CASES:
        folder = tmp_path / str(gpus)
        folder.mkdir(exist_ok=True)
        lines = "".join(f"echo 'GPU {number}: one'\n" for number in range(gpus))
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}")
        (folder / "nvidia-smi").chmod(0o755)
        environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
        environment |= {"PYTEST_XDIST_WORKER": worker} if worker else {}
        environment |= {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {}
        environments.append(environment)
    shown = subprocess.run(
        [sys.executable, "-c", SHOW, json.dumps(environments)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.splitlines() == [expected for *_, expected in CASES]
