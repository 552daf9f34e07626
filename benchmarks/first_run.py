"""How long a user waits for the first token: of a new model, of one like it, and of one that is known.

    python benchmarks/first_run.py model.gguf other.gguf [--repeat 3] [--llama llama-completion] [--json FILE]

Each figure is the median over fresh processes, which load a model on host cpu and write one token:

    new       with an empty cache: all is compiled
    like it   the file under another name: the plan is compiled again, the C program is found
    known     once more

llama.cpp's program, where it is named, does the same in one more process. Wall seconds are those of this machine with
all its cores; where others use it too, only the CPU seconds can be compared. The exit code is 1 if a target is missed:
5 wall seconds for a new model, and 1 more than for a known one for one like it.
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
"""How much longer a model that is like a known one may take than the known one."""


class Took(NamedTuple):
    """What a process took, in seconds."""

    wall: float
    cpu: float


def run(command: Sequence[str], cache: Path) -> Took:
    """Runs a command to its end.

    Raises:
        SystemExit: it failed; the message has what it printed.
    """
    environment = os.environ | {"MLXR_CACHE_DIR": str(cache)}
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


def measure(model: Path, llama: str | None, repeat: int) -> dict[str, Took]:
    """The medians of a model, by what was measured."""
    runs: dict[str, list[Took]] = {}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            twin = Path(folder) / f"another-{model.name}"
            twin.symlink_to(model.absolute())
            cache = Path(folder) / "cache"
            for what, file in (("new", model), ("like it", twin), ("known", model)):
                runs.setdefault(what, []).append(run(ours(file), cache))
            if llama:
                command = [llama, "-m", str(model), "-p", PROMPT, "-n", "1", "-no-cnv"]
                runs.setdefault("llama.cpp", []).append(run(command, cache))
    return {what: Took(*(statistics.median(column) for column in zip(*row, strict=True))) for what, row in runs.items()}


def main() -> int:
    """Measures, prints a table, and says whether the targets are met."""
    parser = argparse.ArgumentParser(description="Time the way to the first token.")
    parser.add_argument("models", type=Path, nargs="+", metavar="FILE", help="a .gguf file")
    parser.add_argument("--repeat", type=int, default=3, help="processes per figure (3)")
    parser.add_argument("--llama", metavar="PROGRAM", help="llama.cpp's llama-completion, to run beside")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-m", "mlxr.cli", "run", "--help"], Path(folder))  # Python's own bytecode
    figures: dict[str, dict[str, Took]] = {}
    for model in args.models:
        figures[model.stem] = measured = measure(model, args.llama, args.repeat)
        if len(figures) == 1:
            print(f"{'wall s (CPU s)':<40}" + "".join(f"{what:>16}" for what in measured))
        print(
            f"{model.stem[:39]:<40}" + "".join(f"{t.wall:>8.2f} ({t.cpu:>5.2f})" for t in measured.values()), flush=True
        )
    missed = [name for name, of in figures.items() if of["new"].wall > NEW_SECONDS]
    missed += [name for name, of in figures.items() if of["like it"].wall - of["known"].wall > LIKE_SECONDS]
    print(f"targets {'missed by ' + ', '.join(missed) if missed else 'met'}")
    if args.json:
        args.json.write_text(
            json.dumps({name: {w: t._asdict() for w, t in of.items()} for name, of in figures.items()})
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
