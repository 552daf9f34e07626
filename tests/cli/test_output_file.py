"""Files that `-o` names: whole or not at all, with the mode they had; what is no regular file is written through."""

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
