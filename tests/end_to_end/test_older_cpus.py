"""Programs held to an instruction set run on the CPUs that had no more, which qemu-user plays; others do not."""

import os
import platform
import shutil
import signal
import subprocess
import sys

import pytest

from mlxr_tests.storyteller import ROOT

QEMU = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(QEMU is None or platform.machine() != "x86_64", reason="there is no qemu-x86_64 for this CPU"),
]


def run(cpu: str, isa: str) -> "subprocess.CompletedProcess[str]":
    """The tests of an instruction set, of all weight formats, on a CPU."""
    tests = [str(ROOT / "tests/end_to_end/test_instruction_sets.py"), "-k", f"llama_cpps and {isa}"]
    command = [str(QEMU), "-cpu", cpu, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--all", *tests]
    env = os.environ | {"OPENBLAS_CORETYPE": cpu}  # NumPy's own library takes what the real CPU has, on some
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("cpu", "isa"), [("Nehalem", "x86-64-v2"), ("Haswell", "x86-64-v3")])
def test_a_program_runs_on_the_cpu_of_its_set(cpu: str, isa: str) -> None:
    done = run(cpu, isa)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_a_program_of_a_newer_set_does_not() -> None:
    assert run("Nehalem", "x86-64-v3").returncode in (-signal.SIGILL, 128 + signal.SIGILL)
