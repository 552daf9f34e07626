"""Models over two NVIDIA cards of one machine, against one card, and against mlx-lm's sharded run.

    PYTHONPATH=src:tests/support python benchmarks/gpu_ranks.py [--models llama-3-8b/bf16,llama-3-70b/affine4]

On a machine with one card both ranks share it, over ring instead of NCCL: that shows that it works, and its times say
nothing, since the card runs the processes in turns. Prints:

1. sums of 8 KB to 32 MB between the ranks, on the device: through MLX, and by the kernel over peer memory;
2. of each model, with random weights and a prompt of about 4,096 tokens in one chunk: `mlxr run` on one card (if it
   fits), on two, on two without peer memory, and mlx-lm's `sharded_load` on two.
"""

import argparse
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from gpu.model_files import ModelFiles, scratch_folder
from gpu.work import MODELS, GpuModel
from peers.models import Array, Shape, write_config, write_safetensors
from peers.tokenizer import write_tokenizer

from mlxr_tests.ranks import free_ports, run_ranks

_HERE = Path(__file__).resolve().parent
_CLI = ["-m", "mlxr.cli"]
_RANKS, _CONTEXT, _WAIT_S = 2, 8192, 900
_70B = GpuModel(Shape("llama-3-70b", 8192, 80, 64, 8, 28672, 128256, 0), 5e5, 512, 0, (), ())
MODELS |= {"llama-3-70b": _70B}


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="llama-3-8b/bf16,llama-3-70b/affine4", help="names of shapes and formats")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=4000, help="words of a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    args = parser.parse_args()
    cards = len(_run(["nvidia-smi", "-L"]).splitlines())
    how = "with a card each, NCCL" if cards >= _RANKS else "on one card, ring"
    print(f"{cards} card(s); {_RANKS} ranks {how}", flush=True)
    print(_on_ranks(cards, [str(_HERE / "peers/rank_sums.py"), str(_RANKS)]), end="", flush=True)
    for name in filter(None, args.models.split(",")):
        with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
            _compare(*name.split("/"), Path(folder), cards, args)
    return 0


def _compare(model: str, format_name: str, folder: Path, cards: int, args: argparse.Namespace) -> None:
    source = _source(model, format_name, folder)
    spec = folder / "spec.yaml"
    _run([sys.executable, *_CLI, "import", str(source), "-o", str(spec)])
    data = yaml.safe_load(spec.read_text("utf-8")) | {"prefill_chunk": 4096}
    spec.write_text(yaml.safe_dump(data), "utf-8")
    command = [*_CLI, "run", str(spec), "--weights", str(source), "--host", "cuda", "--context", str(_CONTEXT)]
    command.append("--force-context")
    lm = [str(_HERE / "peers/sharded_mlx_lm.py"), str(source), str(args.tokens)]
    asked: dict[str, Callable[[list[str]], str]] = {
        "one card": lambda options: _run([sys.executable, *command, *options]),
        "two cards": lambda options: _on_ranks(cards, [*command, *options]),
        "two, without peer memory": lambda options: _on_ranks(cards, [*command, *options], MLXR_PEER_MEMORY="0"),
        "mlx-lm, two": lambda options: _on_ranks(cards, [*lm, options[1]]),
    }
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in asked}
    for number in range(args.rounds + 1):  # the first compiles, and does not count
        letters = random.Random(number)
        words = ("".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=2)) for _ in range(args.prompt // 2))
        options = ["--prompt", " ".join(words), "--raw", "--max-tokens", str(args.tokens)]
        options += ["--ignore-eos", "--temperature", "0", "--json"]
        for name, ask in asked.items():
            try:
                answers[name].append(_answer(ask(options)))
            except RuntimeError as error:
                print(f"{model}/{format_name}, {name}: {str(error)[-600:]}", flush=True)
                answers[name].append({})
    for name, found in answers.items():
        rows = [answer for answer in found[1:] if answer]
        speeds = [
            f"{what} {statistics.median(row[f'{what}_tokens_per_second'] for row in rows):.1f}" if rows else "-"
            for what in ("prefill", "decode")
        ]
        launches = rows[-1].get("launches", {}) if rows else {}
        sums = {key: count for key, count in launches.items() if "sum" in key or key.startswith("step_")}
        print(f"{model}/{format_name}, {name}: {', '.join(speeds)} tokens/s {sums or ''}", flush=True)


def _source(model: str, format_name: str, folder: Path) -> Path:
    if model != _70B.shape.name:
        return ModelFiles(model, folder, _say).source(format_name)
    path = folder / model
    path.mkdir()
    shape = dataclasses.replace(_70B.shape, context=_CONTEXT)
    _say(f"{model}: writing")
    write_safetensors(path / "model.safetensors", _quantised(shape))
    write_config(shape, path, _70B.theta, quantization={"group_size": 64, "bits": 4, "mode": "affine"})
    write_tokenizer(path, shape.vocab)
    return path


def _quantised(shape: Shape) -> dict[str, tuple[str, tuple[int, ...], Callable[[], Array]]]:
    """MLX's 4 bits, random: 140 GB of bf16 would not fit beside them."""
    bits = np.random.default_rng(1).integers(0, 1 << 32, 1 << 22, np.uint32)
    of_bf16 = {"one": 0x3F80, "scales": 0x3B80, "biases": 0xBD00}  # 1, 1/256 and -1/32
    tensors: dict[str, tuple[str, tuple[int, ...], Callable[[], Array]]] = {}
    for name, _, dims, _ in shape.matrices():
        if len(dims) == 1:
            tensors[name] = ("BF16", dims, partial(np.full, dims, of_bf16["one"], np.uint16))
            continue
        rows, columns = dims
        stem = name.removesuffix(".weight")
        tensors[name] = ("U32", (rows, columns // 8), partial(np.resize, bits, (rows, columns // 8)))
        for kind in ("scales", "biases"):
            size = (rows, columns // 64)
            tensors[f"{stem}.{kind}"] = ("BF16", size, partial(np.full, size, of_bf16[kind], np.uint16))
    return tensors


def _on_ranks(cards: int, arguments: list[str], **environ: str) -> str:
    """What rank 0 prints."""
    if cards < _RANKS:
        outputs = run_ranks(_RANKS, arguments, _WAIT_S, **environ)
        if any(output.code for output in outputs):
            raise RuntimeError(" ".join(output.stderr[-1500:] for output in outputs))
        return outputs[0].stdout
    address = {"NCCL_HOST_IP": "127.0.0.1", "NCCL_PORT": str(free_ports(1)[0]), "MLX_WORLD_SIZE": str(_RANKS)}
    ranks = []
    for rank in range(_RANKS):  # as mlx.launch does it
        own = os.environ | address | environ | {"MLX_RANK": str(rank), "CUDA_VISIBLE_DEVICES": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=own))
    try:
        printed = [rank.communicate(timeout=_WAIT_S)[0] for rank in ranks]
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(str(error)[-300:]) from error
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"ranks ended with {[rank.returncode for rank in ranks]}")
    return printed[0]


def _answer(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    answer: dict[str, Any] = json.loads(line)
    return answer


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:100]}: {done.stderr[-1500:]}")
    return done.stdout


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
