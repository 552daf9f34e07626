"""tests/planted_faults.py, which runs for half an hour: its mistakes can still be planted, and its tests are there."""

import runpy

from mlxr_tests.storyteller import ROOT

FAULTS = runpy.run_path(str(ROOT / "tests/planted_faults.py"))["FAULTS"]


def test_each_text_is_there_once() -> None:
    texts = {fault.file: (ROOT / fault.file).read_text("utf-8") for fault in FAULTS}
    counts = {fault.name: texts[fault.file].count(fault.old) for fault in FAULTS}
    assert {name: count for name, count in counts.items() if count != 1} == {}
    assert [fault.name for fault in FAULTS if fault.new == fault.old] == []
    assert len(counts) == len(FAULTS) == 21, "tests/README.md says how many there are"


def test_each_path_of_tests_is_there() -> None:
    paths = {path for fault in FAULTS for path in fault.tests}
    assert {path for path in paths if not (ROOT / path).exists()} == set()
