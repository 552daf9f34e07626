"""Logs that cannot be written, and files that are moved away."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxr.compiler.cli.guard import guarded
from mlxr.compiler.errors import RequestError
from mlxr.server.log_output import LogOutput

LOG = logging.getLogger("mlxr.server.test")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("mlxr")
    before = root.handlers, root.level, own.level
    yield
    for handler in root.handlers:
        if handler not in before[0]:
            handler.close()
    root.handlers = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


def test_lines_of_json_in_a_file_that_is_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "log"
    LogOutput(path, "info").open()
    LOG.info("one")
    LOG.debug("not this")
    assert path.stat().st_mode & 0o777 == 0o600  # it tells who asked for what
    path.rename(tmp_path / "old")
    try:
        raise ValueError("a\nb")
    except ValueError:
        LOG.exception("two")
    old, new = (json.loads((tmp_path / name).read_text()) for name in ("old", "log"))
    assert (old["level"], old["event"]) == ("info", "one")
    assert (new["level"], new["event"]) == ("error", "two") and "ValueError: a\nb" in new["traceback"]


def test_notes_are_plain_until_the_server_has_a_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log"

    def command() -> int:
        LOG.warning("note: %s", "one")
        LOG.info("nobody asked")
        LogOutput(path).open()
        LOG.warning("note: %s", "two")
        return 0

    assert guarded(command) == 0
    assert capsys.readouterr().err == "note: one\n"
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["note: two"]


def test_a_full_disk_is_told_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    LogOutput(path).open()
    for _ in range(3):
        LOG.warning("something")
    told = capsys.readouterr().err
    assert told.count("the log cannot be written, so lines of it are lost") == 1 and "No space left" in told


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"none/log: the log cannot be written: No such file or directory"):
        LogOutput(tmp_path / "none" / "log").open()
