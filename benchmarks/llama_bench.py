"""MLXR against llama.cpp by the command that each has for it: `mlxr bench` and `llama-bench`, in turns, on one file.

    python benchmarks/llama_bench.py --llama-bench FILE [--models glm-4.7-flash,MODEL.gguf] [--formats q4_k_m,q8_0]

Models are files, or names of published shapes of which files with random weights and few layers are made. Both engines
use the GPU if there is one (llama-bench with all layers on it), else as many threads. A turn starts each program once,
and figures are medians over turns: tokens per second after 512 tokens; of prompts of 512; and of prompts whose lengths
the process has not seen, for which llama-bench, which compiles nothing, gets the middle of the range. Prints a table.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from peers.shape_files import FORMATS, SHAPES, write_shape

from mlxr.runtime.machine.threads import usable_cpus

_PROMPT, _DECODED, _LENGTHS = 512, 128, (300, 700)
_ROWS = {
    "decode": f"{_DECODED} tokens after {_PROMPT}",
    "prompt": f"prompts of {_PROMPT}",
    "unseen": f"prompts of unseen lengths {_LENGTHS[0]} to {_LENGTHS[1]}",
}


def main() -> int:
    """Measures and prints."""
    args = _arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        print("| model | format | work | MLXR | llama.cpp | ratio |\n|---|---|---|---|---|---|", flush=True)
        for name, format_name, path in _files(args, folder):
            for line in _table(name, format_name, _measure(path, args)):
                print(line, flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare MLXR with llama.cpp on GGUF files.")
    parser.add_argument("--llama-bench", required=True, metavar="FILE", help="llama.cpp's program of this name")
    parser.add_argument("--models", default=",".join(SHAPES), help=f"files or shapes ({', '.join(SHAPES)})")
    parser.add_argument("--formats", default=",".join(FORMATS), help=f"of shapes ({', '.join(FORMATS)})")
    parser.add_argument("--layers", type=int, help="of shapes (as few as a CPU is timed with: 4, 5, 12)")
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="of both engines, on a CPU (all)")
    parser.add_argument("--gpu", action="store_true", help="on an NVIDIA card")
    parser.add_argument("--experts-on-cpu", type=int, metavar="N", help="leave N layers' experts to the CPU (-ncmoe N)")
    parser.add_argument("--turns", type=int, default=3, help="runs of each engine (3)")
    parser.add_argument("--folder", metavar="DIR", help="where files are kept (a temporary one)")
    return parser.parse_args()


def _files(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, Path]]:
    for model in args.models.split(","):
        if model not in SHAPES:
            yield Path(model).stem, "", Path(model)
            continue
        for format_name in args.formats.split(","):
            yield model, format_name, write_shape(model, format_name, folder, args.layers)


def _measure(path: Path, args: argparse.Namespace) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Tokens per second by row and engine, one for each turn."""
    found: dict[str, dict[str, list[float]]] = {row: {"mlxr": [], "llama.cpp": []} for row in _ROWS}
    for _ in range(args.turns):
        for engine, figures in (("mlxr", _ours(path, args)), ("llama.cpp", _theirs(path, args))):
            for row, rate in figures.items():
                found[row][engine].append(rate)
    return found


def _ours(path: Path, args: argparse.Namespace) -> Mapping[str, float]:
    command = [sys.executable, "-m", "mlxr", "bench", str(path), "--json", "--decode-tokens", str(_DECODED)]
    if args.experts_on_cpu:
        command += ["--experts-on-cpu", str(args.experts_on_cpu)]
    if not args.gpu:
        command += ["--host", "cpu", "--threads", str(args.threads)]
    after = json.loads(_output([*command, "--prompt-tokens", str(_PROMPT)]))
    unseen = json.loads(_output([*command, "--lengths", "{}-{}".format(*_LENGTHS), "--prompts", "12"]))
    return {
        "decode": after["decode_tokens_per_second"],
        "prompt": after["prefill_tokens_per_second"],
        "unseen": unseen["prefill_tokens_per_second"],
    }


def _theirs(path: Path, args: argparse.Namespace) -> Mapping[str, float]:
    """The better of both kinds of attention, for each row."""
    options = ["-ngl", "99"] if args.gpu else ["-ngl", "0", "-t", str(args.threads)]
    if args.experts_on_cpu:
        options += ["-ncmoe", str(args.experts_on_cpu), "-t", str(args.threads)]
    middle = sum(_LENGTHS) // 2
    command = [args.llama_bench, "-m", str(path), "-o", "json", "-r", "3", *options, "-fa", "0,1"]
    prompts = json.loads(_output([*command, "-p", f"{_PROMPT},{middle}", "-n", "0"]))
    decoded = json.loads(_output([*command, "-p", "0", "-n", str(_DECODED), "-d", str(_PROMPT)]))
    best: dict[str, float] = {}
    for run in (*prompts, *decoded):
        row = "decode" if run["n_gen"] else {_PROMPT: "prompt", middle: "unseen"}[run["n_prompt"]]
        best[row] = max(best.get(row, 0.0), run["avg_ts"])
    return best


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}: {done.stderr[-1500:].strip()}")
    return done.stdout


def _table(model: str, format_name: str, found: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    for row, engines in found.items():
        ours, theirs = (statistics.median(rates) for rates in engines.values())
        yield f"| {model} | {format_name} | {_ROWS[row]} | {ours:,.1f} | {theirs:,.1f} | {ours / theirs:.2f} x |"


if __name__ == "__main__":
    sys.exit(main())
