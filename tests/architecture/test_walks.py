"""A reader who follows one of the map's walks enters no file more than twice; `walk.py` says what that means."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("walk", ["compile", "load", "token"])
def test_no_file_is_entered_more_than_twice(walk: str) -> None:
    program = [sys.executable, str(Path(__file__).with_name("walk.py")), walk]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr[-2000:]
    assert " files in " in told.stdout
