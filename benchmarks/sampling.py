"""Times `sample_rows`: processor time of a whole batch, the least of several, in microseconds.

python benchmarks/sampling.py
"""

import time
from typing import Any

import numpy as np

from mlxr.runtime.engine.sampling import Row, Sampler, Sampling, sample_rows

FILTERS: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02}
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "temperature, top-p": {"temperature": 0.8, "top_p": 0.95},
    "temperature, typical-p": {"temperature": 0.8, "typical_p": 0.9},
    "temperature, top-k, top-p, min-p": FILTERS,
    "the same with penalties": FILTERS | PENALTIES,
    "the same with DRY": FILTERS | {"dry_multiplier": 0.8, "dry_breakers": ()},
    "temperature, top-p, 5 logprobs": {"temperature": 0.8, "top_p": 0.95, "logprobs": 5},
}
ROWS = (1, 16, 64)


def main() -> None:
    """Prints a table."""
    random = np.random.default_rng(0)
    print(f"{'vocabulary':>10}  {'options':34}", *(f"{f'{rows} rows':>9}" for rows in ROWS))
    for vocab in (4096, 128256):
        # As a model's: a bell, and some tokens that stand out.
        logits = (random.standard_normal((max(ROWS), vocab)) * 2).astype(np.float32)
        logits[np.arange(len(logits))[:, None], random.integers(0, vocab, (len(logits), 40))] += 6
        for name, options in CASES.items():
            times = [least_time(logits[:rows], Sampling(seed=1, **options), random) for rows in ROWS]
            print(f"{vocab:>10}  {name:34}", *(f"{1e6 * seconds:9.0f}" for seconds in times), flush=True)


def least_time(logits: Any, sampling: Sampling, random: np.random.Generator) -> float:
    """Seconds for one token of each row, after a prompt of 500 tokens and 100 tokens of an answer."""
    vocab = logits.shape[1]
    samplers = [Sampler(sampling, i, random.integers(0, vocab, 500).tolist()) for i in range(len(logits))]
    for sampler in samplers:
        for token in random.integers(0, vocab, 100).tolist():
            sampler.accept(token)
    rows = [Row(sampler, 100) for sampler in samplers]
    times = []
    for _ in range(9):
        start = time.thread_time()
        sample_rows(logits, rows)
        times.append(time.thread_time() - start)
    return min(times)


if __name__ == "__main__":
    main()
