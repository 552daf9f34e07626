"""Whether a model with experts on the CPU computes what it computes with all on the card, and on which host each ran.

    python benchmarks/experts_on_cpu.py [--model qwen1.5-moe-a2.7b] [--layers 4] [--host cuda]

A file with random weights of a published shape is loaded with all experts on the card and with all on the CPU. Two
pairs are compared, by the logits of a prompt and of single tokens after it, in standard deviations of the logits:

* in f32 with exact sums, where both must give the same in every row. Nothing is rounded to 8 or 16 bits, so no router
  whose choices are nearly equal chooses otherwise;
* as users load it. The CPU rounds inputs of products to 8 bits and the card to 16, so single rows may go through other
  experts, and rows after them see those. The median of the rows counts, which no few of them move.

Then prints the launches of both hosts, and the time of a token.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
from peers.shape_files import SHAPES
from peers.shape_writer import write_shape

import mlxr
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.hosts.batch import BatchRequest

_PROMPT, _STEPS, _DECODED = 300, 16, 64
_EXACT = mlxr.Changes(compute="exact", activation_dtype="f32", cache_dtype="f32")
_MOST_EXACT, _MOST_MEDIAN = 0.01, 0.15

Floats = npt.NDArray[np.float32]


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Compare experts on the CPU with experts on the card.")
    parser.add_argument("--model", default="qwen1.5-moe-a2.7b", choices=SHAPES, help="a published shape with experts")
    parser.add_argument("--layers", type=int, default=4, help="of the file (4)")
    parser.add_argument("--host", default="cuda", help="the card's host (cuda)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape(args.model, "q4_k_m", Path(folder), args.layers)
        exact, usual = (
            differences(*(_run(path, args.host, layers, changes) for layers in (0, args.layers)))
            for changes in (_EXACT, mlxr.Changes())
        )
    print(f"in f32, exact: rows differ by at most {exact.max():.6f} standard deviations ({_MOST_EXACT})")
    median = float(np.median(usual))
    print(f"as loaded: the median row differs by at most {median:.4f} ({_MOST_MEDIAN}), any by {usual.max():.4f}")
    return 0 if exact.max() < _MOST_EXACT and median < _MOST_MEDIAN else 1


def differences(whole: Floats, cut: Floats) -> Floats:
    """By how much each row differs at most, in standard deviations of all."""
    most: Floats = np.abs(whole - cut).max(axis=1) / whole.std()
    return most


def _run(path: Path, host: str, layers: int, changes: mlxr.Changes) -> Floats:
    """Logits after each token, with the experts of so many layers on the CPU; as users load it, it is timed, too."""
    with mlxr.load(path, host=host, experts_on_cpu=layers, changes=changes) as model:
        most = min(20000, model.artifact.plan.vocab_size)
        ids = [int(i) for i in np.random.default_rng(1).integers(100, most, _PROMPT + _STEPS)]
        logits = _logits(model, ids)
        if changes is not _EXACT:
            _time(model, ids[:_PROMPT], layers)
    return logits


def _logits(model: mlxr.Model, ids: list[int]) -> Floats:
    """Of a prompt in as few steps as it needs, and of the tokens after it in one step each."""
    plan, rows, start = model.artifact.plan, list[Floats](), 0
    sequence = model.pager.add_sequence()
    while start < len(ids):
        count = min(plan.max_tokens, plan.max_rows, _PROMPT - start) if start < _PROMPT else 1
        step = BatchRequest(sequence, ids[start : start + count], start, "all")
        rows.append(model.host.read(launch_step(model.host, model.pager, [step])))
        start += count
    model.pager.free(sequence)
    return np.concatenate(rows)


def _time(model: mlxr.Model, ids: list[int], layers: int) -> None:
    model.generate(ids, max_tokens=8)
    model.host.launches, start = Counter(), time.perf_counter()
    answer = model.generate(ids, max_tokens=_DECODED, sampling=mlxr.Sampling(ignore_eos=True))
    print(f"experts of {layers} layers on the CPU: {(time.perf_counter() - start) / _DECODED * 1e3:.2f} ms a token")
    print(f"  {answer.token_ids[:12]}")
    print(f"  card: {dict(model.host.launches.most_common(12))}")
    if model.experts is not None:
        print(f"  CPU: {dict(model.experts.launches)}")


if __name__ == "__main__":
    sys.exit(main())
