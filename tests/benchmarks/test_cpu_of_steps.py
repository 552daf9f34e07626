"""benchmarks/cpu_of_steps.py, whole: steps of a card that is made up."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlxr.runtime.hosts.cuda.device import has_cuda

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "cpu_of_steps.py"


@pytest.mark.long
@pytest.mark.skipif(has_cuda(), reason="it would use the real card's MLX")
def test_it_tells_what_steps_take() -> None:
    command = [sys.executable, str(PROGRAM), "--sequences", "2,3", "--step-ms", "1", "--steps", "192", "--turns", "1"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 4, "of each number, greedy and drawn"
    for line, start in zip(said, ("  2 sequences, greedy", "  2 sequences, drawn", "  3 ", "  3 "), strict=True):
        assert line.startswith(start)
        assert re.fullmatch(r".*: \d+ us of each of the first 128 steps, later \d+", line)
