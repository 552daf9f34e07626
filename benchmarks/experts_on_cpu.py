"""Whether a model with experts on the CPU computes what it computes with all on the card, and on which host each ran.

    python benchmarks/experts_on_cpu.py [--model qwen1.5-moe-a2.7b] [--layers 4] [--host cuda]

A file with random weights of a published shape is loaded twice. Prints the greatest difference of the logits, for their
standard deviation, of a prompt and of the tokens after it, the launches of both hosts, and the time of a token.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from peers.shape_files import SHAPES, write_shape

import mlxr

_PROMPT, _DECODED = 300, 64


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Compare experts on the CPU with experts on the card.")
    parser.add_argument("--model", default="qwen1.5-moe-a2.7b", choices=SHAPES, help="a published shape with experts")
    parser.add_argument("--layers", type=int, default=4, help="of the file (4)")
    parser.add_argument("--host", default="cuda", help="the card's host (cuda)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape(args.model, "q4_k_m", Path(folder), args.layers)
        whole, cut = (_run(path, args.host, layers) for layers in (0, args.layers))
    error = float(np.abs(whole - cut).max() / whole.std())
    print(f"logits differ by at most {error:.4f} standard deviations")
    return 0 if error < 0.3 else 1


def _run(path: Path, host: str, layers: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    """Logits of a prompt, token by token at its end, with the experts of so many layers on the CPU."""
    ids = [int(i) for i in np.random.default_rng(1).integers(100, 20000, _PROMPT)]
    with mlxr.load(path, host=host, experts_on_cpu=layers) as model:
        logits = model.logits(ids)
        model.generate(ids, max_tokens=8)
        model.host.launches, start = Counter(), time.perf_counter()
        answer = model.generate(ids, max_tokens=_DECODED, sampling=mlxr.Sampling(ignore_eos=True))
        print(f"experts of {layers} layers on the CPU: {(time.perf_counter() - start) / _DECODED * 1e3:.2f} ms a token")
        print(f"  {answer.token_ids[:12]}")
        print(f"  card: {dict(model.host.launches.most_common(12))}")
        if model.experts is not None:
            print(f"  CPU: {dict(model.experts.launches)}")
    return logits


if __name__ == "__main__":
    sys.exit(main())
