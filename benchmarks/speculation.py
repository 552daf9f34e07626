"""Speculation against plain decoding: the same model, the same prompts, in one run.

    python benchmarks/speculation.py [--rounds 9] [--tokens 300] [--compute exact] [--threads 1]

Each case loads a model twice by `mlxr.load`, once with speculation and otherwise with default options. In a round, both
answer the same prompt side by side, ten tokens each in turn, so that what disturbs one disturbs the other. The answers
must be equal. A round's ratio is that of the time of all tokens after the first one. The figure is the median of the
ratios, with an interval that holds the true one in 95 of 100 cases, and beside it that of all rounds' time: there each
trial of a guess counts, also where most rounds have none. How often the guesser was launched, and how many guesses were
tried, says that there were some.

Where other programs run, `--threads 1` measures the time of the one thread that computes, in which they do not count.
With that and `--rounds 21`, 0.98 can be told from 0.96 on two cores that are shared with others.

* A copying task. storyteller, greedily, comes to repeat its own sentences; a random model copies nothing. So the 100M
  model is given an embedding and an output matrix by which each token has one successor, and attention and MLPs that
  add nothing, at the same cost. Its answer copies a passage of 200 tokens from its prompt, over and over.
* A text that cannot be guessed: storyteller at temperature 1.5, and the 100M model with random weights at temperature
  1, whose tokens are as good as random.
* A story at temperature 0.8, for what an ordinary text gains.
* A draft model of 12M parameters with the same successors, for the copying 100M model.
* With `--heads FOLDER ...`, models with heads of their own instead of all these: those of `benchmarks/train_head.py`.

It writes the models that it makes to the cache folder, and benchmarks/speculation.json.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from peers.models import ROOT, SHAPES, Array, Shape, prepare, write_folder

import mlxr
from mlxr.runtime.cache_folder import cache_folder

_PASSAGE = 200
_SLICE = 10
_SMALL = Shape("12m", 256, 2, 4, 2, 512, SHAPES["100m"].vocab, SHAPES["100m"].context)
_TALE = (
    "The first mouse ate the cheese.\nThe second mouse ate the bread.\nThe third mouse ate the corn.\n"
    "The fourth mouse ate the butter.\nThe fifth mouse went home.\n\nThe first mouse ate"
)


class Case(NamedTuple):
    """One row of the table."""

    name: str
    model: str
    prompt: str | list[int]
    sampling: mlxr.Sampling
    options: dict[str, Any]


def main() -> int:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description="Compare speculation with plain decoding on host cpu.")
    parser.add_argument("--rounds", type=int, default=9, help="answers of each (9)")
    parser.add_argument("--tokens", type=int, default=300, help="of each answer (300)")
    parser.add_argument("--threads", type=int, help="of each model (one for each core); 1: CPU time is measured")
    parser.add_argument("--compute", choices=("fast", "exact"), default="fast", help="as `mlxr run --compute` (fast)")
    parser.add_argument("--heads", nargs="+", default=[], metavar="FOLDER", help="only these models, with their heads")
    parser.add_argument("--only", default="", metavar="WORD", help="only cases with this word in their name")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/speculation.json", metavar="FILE")
    args = parser.parse_args()
    rows = []
    print(
        f"load average {os.getloadavg()[0]:.1f}; {args.rounds} rounds of {args.tokens} tokens, compute {args.compute}"
        f"{', CPU time' if args.threads == 1 else ''}"
    )
    print(
        f"{'':44} {'plain':>8} {'speculating':>12} {'ratio':>6} {'interval':>13} {'of all':>6} {'guessed':>8} "
        f"{'tried':>6} {'accepted':>9} {'per step':>9}"
    )
    for case in _with_heads(args.heads) if args.heads else _cases():
        if args.only in case.name:
            rows.append(_measure(case, args))
            args.output.write_text(json.dumps({"compute": args.compute, "rows": rows}, indent=1) + "\n")
    return 0


def _cases() -> Iterator[Case]:
    cache = cache_folder("peer-models")
    random_model = str(prepare("100m", "bf16", cache, _say).folder)  # like the copiers, without a tokenizer
    copier, small = (str(_copier(shape, cache)) for shape in (SHAPES["100m"], _SMALL))
    passage = [1000 + i for i in range(_PASSAGE)]
    copied, chance = [*passage, passage[0]], np.random.default_rng(0)
    unseen = [int(token) for token in chance.integers(300, 32000, 100)]
    lookup, greedy = {"prompt_lookup": True}, mlxr.Sampling()
    yield Case("storyteller q8_0, copying", "storyteller", _TALE, greedy, lookup)
    yield Case("100m bf16, copying", copier, copied, greedy, lookup)
    yield Case("100m bf16, copying, draft model", copier, copied, greedy, {"draft": small})
    story = "Once upon a time"
    yield Case("storyteller q8_0, story", "storyteller", story, mlxr.Sampling(temperature=0.8, seed=1), lookup)
    yield Case(
        "storyteller q8_0, cannot be guessed", "storyteller", story, mlxr.Sampling(temperature=1.5, seed=1), lookup
    )
    noise = mlxr.Sampling(temperature=1.0, seed=1)
    yield Case("100m bf16, cannot be guessed", random_model, unseen, noise, lookup)
    yield Case("100m bf16, cannot be guessed, draft model", random_model, unseen, noise, {"draft": small})


def _with_heads(folders: list[str]) -> Iterator[Case]:
    for folder in folders:
        for name, sampling in (("greedy", mlxr.Sampling()), ("a story", mlxr.Sampling(temperature=0.8, seed=1))):
            yield Case(f"{Path(folder).name}, own head, {name}", folder, "Once upon a time", sampling, {"mtp": "on"})


def _measure(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    how: dict[str, Any] = {"changes": mlxr.Changes(compute=args.compute), "threads": args.threads}
    plain_model = mlxr.load(case.model, host="cpu", mtp="off", **how)
    model = mlxr.load(case.model, host="cpu", **how, **case.options)
    seconds: dict[str, list[float]] = {"plain": [], "speculating": []}
    with plain_model, model:
        models = {"plain": plain_model, "speculating": model}
        guessed = before = 0
        for round_number in range(args.rounds + 1):
            order = list(models) if round_number % 2 else [*reversed(models)]
            answers, spent = _answers({name: models[name] for name in order}, case, args.tokens, args.threads)
            if answers["plain"] != answers["speculating"]:
                first = _common(answers["plain"], answers["speculating"])
                _say(f"warning: {case.name}: the answers differ from token {first} on")
            if round_number:
                for name in models:
                    seconds[name].append(spent[name])
            else:  # it warms up
                guessed, before = _launched(model), model.core.stats().draft_tokens
        stats = model.core.stats()
        guessed = _launched(model) - guessed
    count = args.tokens - 1
    medians = {name: count / statistics.median(values) for name, values in seconds.items()}
    ratios = sorted(a / b for a, b in zip(seconds["plain"], seconds["speculating"], strict=True))
    low, high = _interval(ratios)
    row = {
        "name": case.name,
        **{name: round(value, 1) for name, value in medians.items()},
        "ratio": round(statistics.median(ratios), 3),
        "interval": [round(low, 3), round(high, 3)],
        "of_all": round(sum(seconds["plain"]) / sum(seconds["speculating"]), 3),
        "guessed": guessed,
        "tried": stats.draft_tokens - before,
        "accepted": stats.acceptance_rate,
        "per_step": stats.tokens_per_step,
    }
    accepted = "-" if row["accepted"] is None else f"{row['accepted']:.0%}"
    print(
        f"{case.name:44} {medians['plain']:8.1f} {medians['speculating']:12.1f} {row['ratio']:6.3f} "
        f"{low:6.3f}-{high:6.3f} {row['of_all']:6.3f} {guessed:8} {row['tried']:6} {accepted:>9} "
        f"{row['per_step'] or 1:9.2f}",
        flush=True,
    )
    return row


def _answers(
    models: dict[str, mlxr.Model], case: Case, count: int, threads: int | None
) -> tuple[dict[str, list[int]], dict[str, float]]:
    """The tokens of the models' answers, and the seconds that they took after the first one."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    how: dict[str, Any] = {"max_tokens": count, "sampling": case.sampling, "ignore_eos": True}
    generations = {name: model.start([case.prompt], **how) for name, model in models.items()}
    seconds = dict.fromkeys(models, 0.0)
    for generation in generations.values():
        next(generation)
    for begin in range(1, count, _SLICE):
        for name, generation in generations.items():
            begun = clock()
            for _ in range(begin, min(begin + _SLICE, count)):
                next(generation)
            seconds[name] += clock() - begun
    return {name: generation.finish()[0].token_ids for name, generation in generations.items()}, seconds


def _launched(model: mlxr.Model) -> int:
    """How often the head or the draft model was launched; 0 of lookups."""
    speculator = model.core.speculator
    assert speculator is not None, "it speculates"
    return max(speculator.launches.values(), default=0)


def _interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Between which of the sorted ratios their median is, in 95 of 100 cases; of few, the least and the greatest."""
    count, outside, rank = len(ratios), 0.0, 0
    while (outside := outside + math.comb(count, rank) / 2**count) <= 0.025 and rank < count // 2:
        rank += 1
    rank = max(0, rank - 1)
    return ratios[rank], ratios[-1 - rank]


def _common(first: list[int], second: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))


def _copier(shape: Shape, cache: Path) -> Path:
    """A folder with a model whose next token is the successor of the last one, in a cycle of 200 tokens."""
    folder = cache / f"{shape.name}-copier"
    if not (folder / "config.json").is_file():
        _say(f"writing {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        write_folder(shape, folder, _copying_tensor)
    return folder


def _copying_tensor(name: str, dims: tuple[int, ...]) -> Array:
    """A tensor's bf16 numbers as their 16 bits."""
    if len(dims) == 1:
        return np.full(dims, 0x3F80, np.uint16)
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return np.zeros(dims, np.uint16)
    is_output = name == "lm_head.weight"
    source = "model.embed_tokens.weight" if is_output else name
    numbers = np.random.default_rng(zlib.crc32(source.encode())).standard_normal(dims, np.float32) * np.float32(0.02)
    if is_output:
        token = np.arange(dims[0])
        successor = token // _PASSAGE * _PASSAGE + (token + 1) % _PASSAGE
        output = np.empty_like(numbers)
        output[successor] = numbers[token]
        numbers = output
    return (np.ascontiguousarray(numbers).view(np.uint32) >> 16).astype(np.uint16)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
