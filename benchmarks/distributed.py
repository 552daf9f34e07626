"""A model over two ranks of this machine against one rank: the same weights and prompts, one core for each rank.

    python benchmarks/distributed.py [--models 100m,storyteller] [--formats bf16,q8_0] [--rounds 5] [--sockets]
    python benchmarks/distributed.py --network 2.5    # Gbit/s; and what it is without overlap

Each measurement is a command as users type it, in a process of its own: `mlxr run MODEL` bound to one core, and
`mlx.launch -n 2 -- mlxr run ARTIFACT`, of an artifact that `mlxr-compile --tensor-parallel 2` wrote. Both take turns,
for several rounds, each with a prompt that nobody has seen, and medians are compared. The answers must be the same
tokens where the model computes exactly (`--compute exact`); the default arithmetic rounds to 8 bits and may differ.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.models import prepare

from mlxr.compiler.artifact import load_artifact
from mlxr.runtime.cache_folder import cache_folder

_CLI = [sys.executable, "-m", "mlxr.cli"]
_APART = "import os, runpy; del os.memfd_create; {}runpy.run_module('mlxr.cli', run_name='__main__', alter_sys=True)"
_CLI_APART = [sys.executable, "-c", _APART.format("")]
"""The command where the system has no memory to share, as ranks on two machines have none."""
_WHOLE = "import mlxr.runtime.hosts.cpu.parallel.overlap as overlap; overlap._AT_LEAST = 1e12; "
_CLI_WHOLE = [sys.executable, "-c", _APART.format(_WHOLE)]
"""The same, with sums that are never beside the compute of another batch."""
_SHAPED = (
    'ip link set lo up mtu 9000 && tc qdisc add dev lo root tbf rate {rate}mbit burst {burst} latency 50ms && exec "$@"'
)
"""A network of its own, for a command: both ways together have that rate, so each has half of it. What was not sent
can be sent later at once, up to the burst."""
_RANKS = 2
_WAIT_S = 300


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Compare two ranks with one.")
    parser.add_argument("--models", default="100m,storyteller", help="which models (both)")
    parser.add_argument("--formats", default="bf16,q8_0", help="formats of 100m (both)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512, help="words of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--compute", choices=("exact", "fast"), default="fast")
    parser.add_argument("--sockets", action="store_true", help="rows go over TCP, as between machines")
    parser.add_argument("--network", type=float, help="the same, over so many Gbit/s each way; Linux with tc")
    args = parser.parse_args()
    columns = "one rank | two | ratio |" + " without overlap | ratio |" * bool(args.network)
    print(f"| model | bytes of a rank | prompt: {columns} decode: {columns} same tokens |")
    print("|---|---|---|---|---|---|---|---|---|" + "---|---|---|---|" * bool(args.network))
    for model in args.models.split(","):
        for name in ["q8_0"] if model == "storyteller" else args.formats.split(","):
            source = prepare(model, name, cache_folder("peer-models"), _say).source
            _compare(f"{model} {name}", source, args)
    return 0


def _compare(name: str, source: Path, args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as work:
        spec, folders = Path(work) / "spec.yaml", [Path(work) / "one", Path(work) / "two"]
        _run([*_CLI, "import", str(source), "--compute", args.compute, "-o", str(spec)])
        compile_command = [sys.executable, "-m", "mlxr.compiler.cli", str(spec), "--target", "cpu", "-o"]
        _run([*compile_command, str(folders[0])])
        _run([*compile_command, str(folders[1]), "--tensor-parallel", str(_RANKS)])
        _ask(folders, source, args, 0)  # builds the programs
        rounds = [_ask(folders, source, args, number) for number in range(1, args.rounds + 1)]
        artifacts = [load_artifact(folder) for folder in folders]
        whole = artifacts[0].plan.first.memory.weights_bytes
        parts = [artifacts[1].of_rank(rank).plan.first.memory.weights_bytes for rank in range(_RANKS)]
    shares = ", ".join(f"{part / whole:.3f}" for part in parts)
    columns = []
    for key in ("prefill_tokens_per_second", "decode_tokens_per_second"):
        alone, *together = (
            statistics.median(answer[key] for answer in answers) for answers in zip(*rounds, strict=True)
        )
        columns.append(f"{alone:.0f}")
        for speed in together:
            columns += [f"{speed:.0f}", f"{speed / alone:.2f} x"]
    same = sum(all(answer["token_ids"] == answers[0]["token_ids"] for answer in answers) for answers in rounds)
    print(f"| {name} | {shares} | {' | '.join(columns)} | {same} of {len(rounds)} |", flush=True)


def _ask(folders: Sequence[Path], source: Path, args: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """One answer of each, to the same prompt."""
    letters = random.Random(seed)
    words = ("".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=2)) for _ in range(args.prompt // 2))
    options = ["--weights", str(source), "--prompt", " ".join(words), "--raw", "--max-tokens", str(args.tokens)]
    options += ["--ignore-eos", "--temperature", "0", "--json"]
    answers = [_answer(_run([*_CLI, "run", str(folders[0]), "--threads", "1", *options], one_core=True))]
    network: list[str] = []
    if args.network:
        rate = round(args.network * 2000)
        shaped = _SHAPED.format(rate=rate, burst=max(20_000, rate * 10))
        network = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", shaped, "sh"]
    for command in [_CLI_APART, _CLI_WHOLE] if network else [_CLI_APART if args.sockets else _CLI]:
        port = str(random.SystemRandom().randrange(20000, 32000))
        launch = [str(Path(sys.executable).parent / "mlx.launch"), "-n", str(_RANKS), "-p", port, "--"]
        answers.append(_answer(_run([*network, *launch, *command, "run", str(folders[1]), *options])))
    return answers


def _answer(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    answer: dict[str, Any] = json.loads(line)
    return answer


def _run(command: Sequence[str], *, one_core: bool = False) -> str:
    def bind() -> None:
        if one_core:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    # A terminal's input does not end; at the end of it, mlx.launch reads without a pause.
    ours, theirs = os.pipe()
    try:
        done = subprocess.run(
            command,
            stdin=ours,
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            preexec_fn=bind,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}: {done.stderr[-2000:]}")
    return done.stdout


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
