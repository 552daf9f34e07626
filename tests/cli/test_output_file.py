"""Files that `-o` names: whole or not at all, with the mode they had; what is not a regular file is written through."""

import os
import stat
import threading
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr.compiler.errors import MlxrError
from mlxr.inspect.picture.draw import write_picture
from mlxr.output_file import write_output
from mlxr_tests.storyteller import GOLDEN

TINY = GOLDEN / "tiny-Q8_0.gguf"


def test_a_regular_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    write_output(path, b"first")
    path.chmod(0o640)
    before = path.stat().st_ino
    write_output(path, b"second")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"second", 0o640)
    assert path.stat().st_ino != before, "a reader of the old file still reads all of it"
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_fifos_are_written_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, link, fifo = tmp_path / "spec.yaml", tmp_path / "link.yaml", tmp_path / "fifo"
    target.write_text("longer than what is written" * 400)
    link.symlink_to(target)
    os.mkfifo(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()), daemon=True)
    reader.start()
    for path in (link, fifo):
        assert main(["import", str(TINY), "-o", str(path)]) == 0
    reader.join(10)
    capsys.readouterr()
    assert main(["import", str(TINY)]) == 0
    text = capsys.readouterr().out
    assert link.is_symlink() and fifo.is_fifo()
    assert (target.read_text(), read) == (text, [text.encode()])


def test_descriptors_and_terminals_are_written_through(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w+b") as stream:
        path = Path(f"/proc/self/fd/{stream.fileno()}")
        if path.exists():  # on Linux
            write_output(path, b"content")
            write_picture("picture", path)
            assert (path.is_symlink(), stream.read()) == (True, b"picture")
    ours, theirs = os.openpty()
    write_output(Path(os.ttyname(theirs)), b"content")
    assert os.read(ours, 7) == b"content"
    os.close(ours)
    os.close(theirs)


def test_an_unwritable_place_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    for path, message in [
        (tmp_path, f"cannot write {tmp_path}: it is a folder; name a file"),
        (tmp_path / "no" / "x", "the folder .* does not exist"),
        (tmp_path / ("x" * 300), "File name too long"),
    ]:
        with pytest.raises(MlxrError, match=message):
            write_output(path, b"")
    assert list(tmp_path.iterdir()) == []


def test_a_write_protected_file_is_left_alone(tmp_path: Path) -> None:
    """Also by root, whom the mode does not stop."""
    path = tmp_path / "spec.yaml"
    path.write_text("mine")
    path.chmod(0o444)
    with pytest.raises(MlxrError, match="it is write-protected; name another file"):
        write_output(path, b"other")
    assert path.read_text() == "mine"


def test_hard_links_stay_one_file(tmp_path: Path) -> None:
    path, other = tmp_path / "spec.yaml", tmp_path / "other.yaml"
    path.write_text("longer than what is written")
    other.hardlink_to(path)
    write_output(path, b"content")
    assert other.read_bytes() == b"content" and path.samefile(other)


def test_links_to_what_is_not_there(tmp_path: Path) -> None:
    link, lost = tmp_path / "link", tmp_path / "lost"
    link.symlink_to("new")
    lost.symlink_to("no/such/file")
    write_output(link, b"content")
    assert (tmp_path / "new").read_bytes() == b"content" and link.is_symlink()
    with pytest.raises(MlxrError, match="lost: it links to no/such/file, in a folder that does not exist"):
        write_output(lost, b"content")
