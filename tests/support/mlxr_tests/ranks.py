"""Starts the ranks of a model as processes of this machine, as `mlx.launch` does, over the loopback interface."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlxr_tests.storyteller import ROOT


@dataclass(frozen=True)
class RankOutput:
    """How a rank ended.

    Attributes:
        code: its exit code; of a process that a signal ended, minus the signal.
        stdout: what it printed.
        stderr: what it printed there.
    """

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Rank:
    """A rank that runs, or has ended.

    Attributes:
        process: with its exit code and its signals.
        folder: has the files stdout and stderr.
    """

    process: "subprocess.Popen[bytes]"
    folder: Path

    def output(self) -> RankOutput:
        """What it printed until now, and its exit code if it has ended."""
        stdout, stderr = ((self.folder / name).read_text("utf-8") for name in ("stdout", "stderr"))
        return RankOutput(self.process.poll() if self.process.poll() is not None else 0, stdout, stderr)


def run_ranks(count: int, arguments: Sequence[str], seconds: float = 60, **environ: str) -> list[RankOutput]:
    """Runs all ranks to their end.

    Args:
        count: how many.
        arguments: of Python: `-c` and a text, or `-m` and a module, and more.
        seconds: for how long to wait; then all are killed, and the test fails with what they printed.
        environ: more environment.
    """
    with start_ranks(count, arguments, environ) as ranks:
        until = time.monotonic() + seconds
        try:
            for rank in ranks:
                rank.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            for rank in ranks:
                rank.process.kill()
                rank.process.wait()
            raise AssertionError(f"{error}: {[rank.output() for rank in ranks]}") from error
        return [rank.output() for rank in ranks]


@contextmanager
def start_ranks(count: int, arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Iterator[list[Rank]]:
    """Starts all ranks; kills those that run when the `with` block ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hostfile = folder / "hostfile.json"
        hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(count)]))
        ranks: list[Rank] = []
        try:
            for rank in range(count):
                ranks.append(start_rank(rank, hostfile, arguments, folder / str(rank), environ))
            yield ranks
        finally:
            for started in ranks:
                started.process.kill()
                started.process.wait()


def start_rank(
    rank: int, hostfile: Path, arguments: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None
) -> Rank:
    """Starts one rank, whose output goes to files of a folder."""
    folder.mkdir(exist_ok=True)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests/support"), os.environ.get("PYTHONPATH", "")])
    added = {"PYTHONPATH": paths, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile), **(environ or {})}
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        command = [sys.executable, *arguments]
        return Rank(subprocess.Popen(command, stdout=stdout, stderr=stderr, env=os.environ | added), folder)


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
