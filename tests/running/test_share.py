"""`--share I/N` of tests/conftest.py: processes that run the tests together, each its own."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlxr_tests.few import few

TESTS = Path(__file__).parents[1]
OF_MANY = """
import pytest

@pytest.mark.parametrize("number", range(8))
def test_wanted(number):
    pass

@pytest.mark.parametrize("number", range(5))
def test_other(number):
    pass
"""


def collected(folder: Path, share: str) -> "subprocess.CompletedProcess[str]":
    (folder / "test_many.py").write_text(OF_MANY)
    options = f"-p conftest -p no:cacheprovider --collect-only -q -k wanted --share={share} --rootdir".split()
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder), str(folder)],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("count", [1, 3])
def test_shares_are_disjoint_and_together_all(tmp_path: Path, count: int) -> None:
    outputs = [collected(tmp_path, f"{index}/{count}").stdout for index in range(count)]
    shares = [[line for line in output.splitlines() if "::" in line] for output in outputs]
    together = sorted(itertools.chain(*shares))
    assert together == [f"test_many.py::test_wanted[{number}]" for number in range(8)], "each once, and what -k left"
    assert max(map(len, shares)) - min(map(len, shares)) <= 1, "shares differ by one test at most"


@pytest.mark.parametrize("share", few(["3/3", "3", "-1/3", "0/0"], ["3/3", "3"]))
def test_what_is_no_share_is_refused(tmp_path: Path, share: str) -> None:
    refused = collected(tmp_path, share)
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "give I/N with I from 0 to N - 1" in refused.stderr
