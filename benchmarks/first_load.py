"""How long a model takes to load where nothing is cached, and once more, phase by phase.

    python benchmarks/first_load.py model.gguf other.gguf [--host cuda] [--repeat 3] [--json FILE]

Each row is the median process of several, each fresh, from its start to the first token of an answer:

    new      caches of MLXR, of MLX and of NVIDIA's driver are empty
    known    once more

    start    Python, and `import mlxr`
    compile  until the first weight is read: imports, the model's file and tokenizer, the artifact; kernels are begun
    weights  until all are where the host wants them
    kernels  until the last one is compiled, as far as that has not happened by the way
    steps    one step of each kind, as many as there are
    answer   two tokens of a prompt of five

Python's bytecode is there, as in an installed package, whose files pip compiles, and so are the files' pages in the
system's cache: a process that is not measured reads them. CPU seconds are those of all threads. The exit code is 1 if a
new model takes more than 8 s from `mlxr.load` to its return.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST_SECONDS = 8.0
PHASES = ("start", "compile", "weights", "kernels", "steps", "answer")
CACHES = ("MLXR_CACHE_DIR", "MLX_PTX_CACHE_DIR", "CUDA_CACHE_PATH")
"""The folders of MLXR's cache, of what MLX compiles, and of what the driver does."""

_PROGRAM = """
import json, sys, time
import mlxr
from mlxr.compiler.spec.change import Changes
path, host, started = sys.argv[1], sys.argv[2], float(sys.argv[3])
first, ends = {}, {"start": time.time()}
def tell(phase, done, total):
    first.setdefault(phase, time.time())
changes = Changes(needed_context=2048, sequences=16)
with mlxr.load(path, host=host, changes=changes, progress=tell) as model:
    loaded = time.time()
    model.start([[1, 2, 3, 4, 5]], max_tokens=2, ignore_eos=True).finish()
    ends["answer"] = time.time()
    ends["compile"] = min([*first.values(), loaded])
    ends["weights"] = first.get("kernels", first.get("steps", loaded))
    ends["kernels"] = first.get("steps", loaded)
    ends["steps"] = loaded
took, before = {}, started
for phase in ("start", "compile", "weights", "kernels", "steps", "answer"):
    took[phase] = max(0.0, ends[phase] - before)
    before = max(before, ends[phase])
print(json.dumps({"load": loaded - ends["start"], "cpu": time.process_time(), **took}))
"""


def run(model: Path, host: str, bytecode: Path, caches: Path) -> dict[str, float]:
    """Loads a model in a process of its own.

    Args:
        model: its file.
        host: where.
        bytecode: the folder of Python's.
        caches: a folder for all caches.

    Returns:
        Seconds of each phase, of `mlxr.load`, and of CPU time.

    Raises:
        SystemExit: it failed; the message has what it printed.
    """
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment |= {name: str(caches / name.lower()) for name in CACHES}
    command = [sys.executable, "-c", _PROGRAM, str(model), host, str(time.time())]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{model}:\n{process.stderr[-2000:]}")
    found: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return found


def measure(model: Path, host: str, repeat: int, bytecode: Path) -> dict[str, dict[str, float]]:
    """The median processes of a model, by what was measured."""
    runs: dict[str, list[dict[str, float]]] = {"new": [], "known": []}
    for number in range(repeat + 1):
        with tempfile.TemporaryDirectory() as caches:
            for own in runs.values():
                took = run(model, host, bytecode, Path(caches))
                if number:  # the first one has found no bytecode, and perhaps no pages
                    own.append(took)
    return {what: sorted(own, key=lambda each: each["load"])[(repeat - 1) // 2] for what, own in runs.items()}


def main() -> int:
    """Measures, prints a table, and says whether the target is met."""
    parser = argparse.ArgumentParser(description="Time the way from nothing to a loaded model.")
    parser.add_argument("models", type=Path, nargs="+", metavar="FILE", help="a .gguf file")
    parser.add_argument("--host", default="cuda", help="where they are loaded (cuda)")
    parser.add_argument("--repeat", type=int, default=3, help="processes per figure (3)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    figures = {}
    print(f"{'':<40}{'':>7}{'load':>8}{'CPU':>8}" + "".join(f"{phase:>9}" for phase in PHASES))
    with tempfile.TemporaryDirectory() as bytecode:
        for model in args.models:
            figures[model.stem] = measured = measure(model, args.host, args.repeat, Path(bytecode))
            for what, took in measured.items():
                times = "".join(f"{took[phase]:>9.2f}" for phase in PHASES)
                print(f"{model.stem[:39]:<40}{what:>7}{took['load']:>8.2f}{took['cpu']:>8.2f}{times}", flush=True)
    slow = [name for name, measured in figures.items() if measured["new"]["load"] > MOST_SECONDS]
    print(f"{MOST_SECONDS:.0f} s for a new model: {'missed by ' + ', '.join(slow) if slow else 'met'}")
    if args.json:
        args.json.write_text(json.dumps(figures))
    return bool(slow)


if __name__ == "__main__":
    sys.exit(main())
