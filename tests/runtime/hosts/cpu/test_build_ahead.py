"""Programs that are built while their artifacts are still being compiled."""

import time
from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cpu.build_ahead import building_ahead, take_library

TEXT = '__attribute__((visibility("default"))) int answer(void) { return 42; }\n'
PROGRAM: Any = None  # host cpu needs no more than its text


def test_who_loads_the_library_takes_what_was_begun(cache, runs) -> None:
    with building_ahead() as begin:
        begin.program(PROGRAM, {"cpu/model.c": TEXT}, "model")
        begin.program(PROGRAM, {"cpu/model.c": TEXT}, "model")
        assert take_library(TEXT, "model").answer() == 42
        assert take_library(f"{TEXT}// another\n", "model").answer() == 42
    assert len(runs) == 2


def test_what_nobody_takes_is_ended(cache, only, tmp_path: Path) -> None:
    only("cc", f"touch {tmp_path / 'begun'}; sleep 60")
    started = time.monotonic()
    with pytest.raises(ValueError, match="no memory"), building_ahead() as begin:
        begin.program(PROGRAM, {"cpu/model.c": TEXT}, "model")
        while not (tmp_path / "begun").exists():
            assert time.monotonic() - started < 30
            time.sleep(0.01)
        raise ValueError("no memory")
    assert time.monotonic() - started < 30
    only("cc", 'exec "$REAL" "$@"')
    assert take_library(TEXT, "model").answer() == 42, "it is built anew"


def test_a_failure_is_told_to_who_waits(cache, only) -> None:
    only("cc", "echo 'error: no such thing' >&2; exit 1")
    with building_ahead() as begin:
        begin.program(PROGRAM, {"cpu/model.c": TEXT}, "model")
        with pytest.raises(HostError, match="no such thing"):
            take_library(TEXT, "model")
