"""How long constraints take: to load, to compile, to make a mask, to find forced tokens.

    python benchmarks/constraints.py [TOKENIZER ...] [--answers 50]

A TOKENIZER is what `load_tokenizer` takes; without one, the bundled storyteller's of 4,096 tokens. Answers are made at
random from the allowed tokens, which visits more states than a model does. `fresh` is the first answer to a grammar;
later ones, `shared`, profit from what it has found out. Compiling is timed by the clock, with the trial in another
process. All else is CPU time of the thread, which a busy machine hardly changes.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from mlxr.runtime.engine.constraint import Constraint, ConstraintCompiler
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer

STORYTELLER = Path(__file__).parents[1] / "models/storyteller/tokenizer.model"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mail": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "maxItems": 5},
        "kind": {"enum": ["red", "green", "blue"]},
        "home": {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]},
    },
    "required": ["name", "age", "mail"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Sampling(json_schema=SCHEMA),
    "any JSON": Sampling(json_schema=True),
    "regex": Sampling(regex=r"([A-Z][a-z]{2,8} ){3,6}[0-9]{4}-[0-9]{2}"),
    "choice": Sampling(choice=[f"choice number {i * 7919 % 10007} of many" for i in range(1000)]),
}
MOST_TOKENS = 200
_T = TypeVar("_T")


class Times(dict[str, list[float]]):
    """Seconds by what was done."""

    def of(self, what: str, work: Callable[[], _T], clock: Callable[[], float] = time.thread_time) -> _T:
        """Does something and takes its time."""
        start = clock()
        result = work()
        self.setdefault(what, []).append(clock() - start)
        return result


def answer(constraint: Constraint, times: Times, kind: str, seed: int) -> None:
    """An answer of at most `MOST_TOKENS` tokens."""
    chance, count = random.Random(seed), 0
    while count < MOST_TOKENS and not constraint.is_complete:
        tokens = times.of("forced", constraint.forced)
        if not tokens:
            words = times.of(f"mask, {kind}", constraint._make_mask)  # without the thread, whose wake-up takes longer
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            token = int(chance.choice(allowed))
            times.of("accept", partial(constraint.accept, token))
            tokens = [token]
        count += len(tokens)


def measure(name: str, answers: int) -> None:
    """Prints the times of one tokenizer."""
    tokenizer = load_tokenizer(name)
    compiler = ConstraintCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
    start = time.perf_counter()
    compiler.load()
    loaded = time.perf_counter() - start
    compiler.compile(GRAMMARS["regex"])
    print(f"{Path(name).name}: {tokenizer.vocab_size} tokens; loaded in {1e3 * loaded:.0f} ms; ", end="")
    print(f"the first grammar took {1e3 * (time.perf_counter() - start - loaded):.0f} ms more")
    for grammar, sampling in GRAMMARS.items():
        times = Times()
        for _ in range(5):
            compiler._grammars.clear()
            constraint = times.of("compile, fresh", partial(compiler.compile, sampling), time.perf_counter)
            answer(constraint, times, "fresh", 0)
        for seed in range(answers):
            constraint = times.of("compile, shared", partial(compiler.compile, sampling), time.perf_counter)
            answer(constraint, times, "shared", seed)
        for what, seconds in sorted(times.items()):
            p50, p99 = statistics.median(seconds), float(np.quantile(seconds, 0.99))
            row = f"p50 {1e6 * p50:8.1f} us   p99 {1e6 * p99:8.1f}   max {1e6 * max(seconds):8.1f}   of {len(seconds)}"
            print(f"  {grammar:10} {what:16} {row}")
    compiler.close()


def main() -> None:
    """Measures the tokenizers of the command line."""
    parser = argparse.ArgumentParser(description="Time constraints.")
    parser.add_argument("tokenizer", nargs="*", default=[str(STORYTELLER)], help="what to load (the storyteller's)")
    parser.add_argument("--answers", type=int, default=50, help="answers for each grammar (50)")
    args = parser.parse_args()
    for name in args.tokenizer:
        measure(name, args.answers)


if __name__ == "__main__":
    main()
