"""The long tests of tests/conftest.py: which run by which option, and tables of cases of which a few are short."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlxr_tests.few import covering, few, few_of
from mlxr_tests.first_worker import FirstWorker

TESTS = Path(__file__).parents[1]
SOME_LONG = """
import pytest
from mlxr_tests.few import few

@pytest.mark.parametrize("number", few(range(5), [1, 3]))
def test_many(number):
    assert number < 4

@pytest.mark.long
def test_alone():
    pass
"""
SHORT = {f"test_some.py::test_many[{number}]" for number in (1, 3)}
LONG = {f"test_some.py::test_many[{number}]" for number in (0, 2, 4)} | {"test_some.py::test_alone"}


def run(folder: Path, *options: str, test: str = "") -> str:
    (folder / "test_some.py").write_text(SOME_LONG)
    own = ["-p", "conftest", "-p", "no:cacheprovider", "--rootdir", str(folder), *options]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *own, f"{folder}/test_some.py{test}"],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.mark.parametrize(
    ("options", "test", "expected"),
    [
        ((), "", SHORT),
        (("--rest",), "", LONG),
        (("--all",), "", SHORT | LONG),
        ((), "::test_alone", {"test_some.py::test_alone"}),
    ],
    ids=["make test", "the rest", "all", "named"],
)
def test_which_tests_run(tmp_path: Path, options: tuple[str, ...], test: str, expected: set[str]) -> None:
    output = run(tmp_path, "--collect-only", "-q", *options, test=test)
    assert {line for line in output.splitlines() if "::" in line} == expected


def test_a_failure_says_how_its_share_is_run_again(tmp_path: Path) -> None:
    assert "make test-rest" not in run(tmp_path, "--rest", "--share", "1/2")
    failed = run(tmp_path, "--rest", "--share", "0/2")
    assert "this was share 0/2 of the long tests; again: make test-rest SHARE=0/2" in failed


def test_other_workers_wait_until_the_first_has_read_all_tests(tmp_path: Path) -> None:
    first, second = (FirstWorker(tmp_path / "read", is_first=is_first) for is_first in (True, False))
    first.pytest_collection()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(second.pytest_collection)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        first.pytest_collection_finish()
        waiting.result(timeout=30)
    second.pytest_sessionfinish()
    assert (tmp_path / "read").exists()
    first.pytest_sessionfinish()
    assert not (tmp_path / "read").exists()


def values(parameters: list[object], *, is_long: bool) -> list[object]:
    return [p.values for p in parameters if bool(p.marks) == is_long]  # type: ignore[attr-defined]


def test_few_of_a_table() -> None:
    assert values(few("abc", "b"), is_long=False) == [("b",)]
    assert values(few("abc", "b"), is_long=True) == [("a",), ("c",)]
    assert values(few([(1, 2), (3, 4)], [(3, 4)]), is_long=False) == [(3, 4)]
    assert values(few([(1, 2), (3, 4)], [(3, 4)], whole=True), is_long=False) == [((3, 4),)]
    with pytest.raises(AssertionError, match=r"no cases: \['d'\]"):
        few("abc", "bd")
    with pytest.raises(AssertionError, match="`make test` would run no case of this test"):
        few("abc", "")


def test_few_cases_have_every_value() -> None:
    cases = [(a, b, c) for a in range(5) for b in "xyz" for c in (False, True)]
    chosen = covering(cases, lambda case: case)
    assert len(chosen) == 5 and all({case[i] for case in chosen} == {case[i] for case in cases} for i in range(3))
    assert values(few_of(range(5), "xyz", (False, True)), is_long=False) == chosen
    assert len(few_of(range(5), "xyz", (False, True))) == 30
