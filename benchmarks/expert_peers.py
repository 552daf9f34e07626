"""MLXR's cpu host against llama.cpp's llama-bench, with a mixture of experts: Qwen1.5-MoE-A2.7B's shape, 4 layers.

    python benchmarks/expert_peers.py --llama DIR [--formats q8_0,q4_k_m] [--rounds 5] [--threads N]

DIR has llama-bench and llama-quantize. The model has random weights; its files are first written to the cache folder
(9 GB, of which the bf16 file is half). Both engines take turns, and medians count; of llama.cpp those with or without
flash attention, whichever are better. On a machine that does other work, too, run it with `chrt -r 20`: then others get
what is left of the cores, but caches and memory are still shared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

from peers.models import prepare
from peers.worker import Worker

from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.machine.threads import usable_cpus

MODEL = "qwen2moe"
PROMPT, STEPS = 512, 64
TARGETS = {"prompt": 1.5, "decode": 1.1}


def llama_bench(program: Path, source: Path, threads: int) -> list[dict[str, float]]:
    """Tokens per second of a prompt and of decoding from an empty context, without and with flash attention."""
    command = [program, "-m", source, "-p", PROMPT, "-n", STEPS, "-r", 1, "-t", threads, "-fa", "off,on", "-o", "json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program} failed: {done.stderr[-500:]}")
    speeds: dict[str, dict[str, float]] = {}
    for row in json.loads(done.stdout):
        speeds.setdefault(str(row["flash_attn"]), {})["prompt" if row["n_prompt"] else "decode"] = row["avg_ts"]
    return list(speeds.values())


def start_mlxr(source: Path, threads: int, log: TextIO) -> Worker:
    """A process with the model loaded."""
    worker = Worker("peers.with_mlxr", threads, log, "")
    worker.ask("load", source=str(source), threads=threads, batch=1, context=PROMPT + 2 * STEPS)
    return worker


def mlxr(worker: Worker) -> dict[str, float]:
    """The same of MLXR."""
    replies = {"prompt": worker.ask("prefill", tokens=PROMPT)}
    replies["decode"] = worker.ask("decode", context=1, batch=1, tokens=STEPS)
    return {what: reply["tokens"] / reply["seconds"] for what, reply in replies.items()}


def measure(format_name: str, args: argparse.Namespace, log: TextIO) -> dict[str, Any]:
    """Medians of both engines in one format, and their ratios."""
    source = prepare(MODEL, format_name, args.models or cache_folder("peer-models"), _say, args.llama).source
    worker = start_mlxr(source, args.threads, log)
    own: list[dict[str, float]] = []
    theirs: list[list[dict[str, float]]] = []
    for number in range(args.rounds + 1):
        speeds = mlxr(worker), llama_bench(args.llama / "llama-bench", source, args.threads)
        if number:  # the first round warms up
            own.append(speeds[0])
            theirs.append(speeds[1])
            _say(f"{format_name}, round {number}: {speeds}")
    worker.close()
    result: dict[str, Any] = {"format": format_name}
    for what in TARGETS:
        mine = statistics.median(speeds[what] for speeds in own)
        peer = max(statistics.median(speeds[what] for speeds in way) for way in zip(*theirs, strict=True))
        result[what] = {"mlxr": mine, "llama.cpp": peer, "ratio": mine / peer}
    return result


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measures, prints a table, and says whether the targets are met."""
    parser = argparse.ArgumentParser(description="Compare the cpu host with llama.cpp on a mixture of experts.")
    parser.add_argument("--llama", type=Path, required=True, metavar="DIR", help="llama.cpp's programs")
    parser.add_argument("--models", type=Path, metavar="DIR", help="where the model's files are (the cache folder)")
    parser.add_argument("--formats", default="q8_0,q4_k_m", help="which formats (q8_0,q4_k_m)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each (5)")
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="threads of each engine (all cores)")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryFile("w+") as log:
        results = [measure(name, args, log) for name in args.formats.split(",")]
    print(f"{args.threads} threads, medians of {args.rounds} rounds, load average before {before:.1f}\n")
    print("| format | tokens per second | MLXR | llama.cpp | ratio | target |\n|---|---|---|---|---|---|")
    for row in results:
        for what, target in TARGETS.items():
            name = f"prompt of {PROMPT}" if what == "prompt" else f"{STEPS} decode steps"
            mine, peer, ratio = row[what].values()
            print(f"| {row['format']} | {name} | {mine:.1f} | {peer:.1f} | {ratio:.2f} x | {target} x |")
    return 0 if all(row[what]["ratio"] >= target for row in results for what, target in TARGETS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
