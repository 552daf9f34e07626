"""A process that is told to end while it writes leaves nothing half-written, and ends by the signal."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from mlxr.runtime.undone_at_signals import undone_at_signals

_WRITES = """
    import os, shutil, signal
    from pathlib import Path
    from mlxr.output_file import new_folder, open_output

    signal.signal(signal.{number}, signal.SIG_DFL)  # under nohup, SIGHUP is ignored

    def end():
        os.kill(os.getpid(), signal.{number})

    def remove(*given, of=shutil.rmtree, **more):
        print("removes", flush=True)
        end()
        of(*given, **more)

    shutil.rmtree = remove
    with new_folder(Path("folder"), 1) as folder:
        (folder / "content").write_bytes(b"half")
        with open_output(Path("file"), 1) as stream:
            assert len(list(Path.cwd().iterdir())) == 2
            end()
    print("goes on")
"""
"""A process that gets a second signal while it removes what it has written."""


def _ended(folder: Path, number: str) -> tuple[int, str]:
    program = textwrap.dedent(_WRITES.format(number=number))
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert list(folder.iterdir()) == [], done.stderr
    return done.returncode, done.stdout


def test_what_was_begun_is_removed(tmp_path: Path) -> None:
    for number in ("SIGTERM", "SIGHUP"):
        assert _ended(tmp_path, number) == (-getattr(signal, number), "removes\n" * 2)


def test_actions_of_others_stay() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    try:
        with undone_at_signals():
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [signal.SIGTERM] * 2
