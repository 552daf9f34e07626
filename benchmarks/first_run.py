"""How long a user waits for the first token: of a new model, of one like it, and of one that is known.

    python benchmarks/first_run.py model.gguf other.gguf [--repeat 3] [--llama llama-completion] [--json FILE]

Each figure is the median over fresh processes, which load a model on host cpu and write one token:

    new       with an empty cache: all is compiled
    like it   the file under another name: nothing is compiled
    known     once more

Python's bytecode is there, as in an installed package, whose files pip compiles: a process that is not measured writes
it, even where PYTHONDONTWRITEBYTECODE is set.

llama.cpp's program, where it is named, does the same in one more process. Wall seconds are those of this machine with
all its cores; where others use it too, only the CPU seconds can be compared. The exit code is 1 if a target is missed:
5 wall seconds for a new model, and 1 for one like a known one; or what llama.cpp takes, if that is more.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PROMPT = "Once upon a time"
NEW_SECONDS = 5.0
LIKE_SECONDS = 1.0


class Took(NamedTuple):
    """What a process took, in seconds."""

    wall: float
    cpu: float


def run(command: Sequence[str], cache: Path, bytecode: Path) -> Took:
    """Runs a command to its end.

    Args:
        command: program and arguments.
        cache: MLXR's cache folder.
        bytecode: the folder of Python's.

    Raises:
        SystemExit: it failed; the message has what it printed.
    """
    environment = os.environ | {"MLXR_CACHE_DIR": str(cache), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile("w+") as said:
        started = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        if status:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}\n{said.read()[-2000:]}")
    return Took(wall, used.ru_utime + used.ru_stime)


def ours(model: Path | str) -> list[str]:
    """The command that loads a model and writes a token."""
    program = [sys.executable, "-m", "mlxr.cli", "run", str(model)]
    return [*program, "--host", "cpu", "--prompt", PROMPT, "--max-tokens", "1"]


def measure(model: Path, llama: str | None, repeat: int, bytecode: Path) -> dict[str, Took]:
    """The medians of a model, by what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        run(ours(model), Path(folder), bytecode)
    runs: dict[str, list[Took]] = {}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            twin = Path(folder) / f"another-{model.name}"
            twin.symlink_to(model.absolute())
            cache = Path(folder) / "cache"
            for what, file in (("new", model), ("like it", twin), ("known", model)):
                runs.setdefault(what, []).append(run(ours(file), cache, bytecode))
            if llama:
                command = [llama, "-m", str(model), "-p", PROMPT, "-n", "1", "-no-cnv"]
                runs.setdefault("llama.cpp", []).append(run(command, cache, bytecode))
    return {what: Took(*(statistics.median(column) for column in zip(*row, strict=True))) for what, row in runs.items()}


def main() -> int:
    """Measures, prints a table, and says whether the targets are met."""
    parser = argparse.ArgumentParser(description="Time the way to the first token.")
    parser.add_argument("models", type=Path, nargs="+", metavar="FILE", help="a .gguf file")
    parser.add_argument("--repeat", type=int, default=3, help="processes per figure (3)")
    parser.add_argument("--llama", metavar="PROGRAM", help="llama.cpp's llama-completion, to run beside")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    figures: dict[str, dict[str, Took]] = {}
    with tempfile.TemporaryDirectory() as bytecode:
        for model in args.models:
            figures[model.stem] = measured = measure(model, args.llama, args.repeat, Path(bytecode))
            if len(figures) == 1:
                print(f"{'wall s (CPU s)':<40}" + "".join(f"{what:>16}" for what in measured))
            times = "".join(f"{t.wall:>8.2f} ({t.cpu:>5.2f})" for t in measured.values())
            print(f"{model.stem[:39]:<40}{times}", flush=True)
    missed = []
    for name, of in figures.items():
        theirs = of["llama.cpp"].wall if "llama.cpp" in of else 0.0
        if of["new"].wall > max(NEW_SECONDS, theirs) or of["like it"].wall > max(LIKE_SECONDS, theirs):
            missed.append(name)
    print(f"targets {'missed by ' + ', '.join(missed) if missed else 'met'}")
    if args.json:
        args.json.write_text(
            json.dumps({name: {w: t._asdict() for w, t in of.items()} for name, of in figures.items()})
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
