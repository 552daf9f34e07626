"""MLXR's engine beside its peers and beside its own past: many requests, shared prefixes, streams, steady batches.

    python benchmarks/engine.py --llama-cpp DIR [--models storyteller,100m] [--only throughput,single] [--quick]

Each engine is a process that keeps its model loaded; the engines take turns for several rounds, and the figures are
medians. What each part measures is said in benchmarks/serving, in the module of its name. The peer on host cpu is
llama.cpp's `llama-server` with continuous batching, in the best of three settings; DIR is the folder of a build's
programs (llama-server and llama-quantize). GCC 12 or older needs CFLAGS and CXXFLAGS "-fno-tree-dse -fno-dse" where the
CPU has AMX (see cpu_peers.py). `--base` is the commit whose `Generation` the engine is compared with for one request;
its files are taken from the repository into a temporary folder.

Random models are first written to the cache folder. Prints a table and writes benchmarks/engine.json; the exit code is
1 if a row is not what it must be.
"""

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.models import ROOT
from serving import changes, command, overhead, prefixes, single, streams, throughput

_BASE = "89237e4"
_PARTS: command.Parts = {
    "throughput": throughput.measure,
    "single": single.measure,
    "overhead": overhead.measure,
    "prefixes": prefixes.measure,
    "streams": streams.measure,
    "changes": changes.measure,
}
_LONG = {"storyteller": ("prefixes", "streams"), "100m": ("overhead",)}
"""What `--quick` leaves out: what the other model shows as well, or better."""


def main() -> int:
    """Measures, prints, writes."""
    command.exit_when_ended()
    parser = command.option_parser("Measure the engine on host cpu.", _PARTS)
    parser.add_argument(
        "--quick", action="store_true", help="one round, one setting of llama.cpp, each part by one model"
    )
    parser.add_argument(
        "--base", default=_BASE, metavar="COMMIT", help=f"compare one request with it ({_BASE}); '': no"
    )
    args = parser.parse_args()
    with _sources(args.base) as base:
        left_out = _LONG if args.quick else None
        return command.run(args, _PARTS, "engine", is_quick=args.quick, base=base, left_out=left_out)


@contextmanager
def _sources(commit: str) -> Iterator[Path | None]:
    """The files of a commit, in a folder; None, with a note, if there is no such commit here."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "base.tar"
        git = ["git", "-C", str(ROOT), "archive", "--output", str(archive), commit]
        done = subprocess.run(git, capture_output=True, text=True, check=False) if commit else None
        if done is None or done.returncode:
            if done:
                command.say(f"no comparison with {commit}: {done.stderr.strip()}")
            yield None
            return
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="tar")
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
