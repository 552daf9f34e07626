"""Schedules of batches for a host; `HostPair` compares it with the reference at every step."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from mlxr_tests.host_pair import HostPair
from mlxr_tests.tolerances import check_logits


def tokens(rng: np.random.Generator, count: int) -> list[int]:
    """Random token ids."""
    return rng.integers(0, 61, count).tolist()


def one_sequence(pair: HostPair) -> None:
    """Runs chunks, then single tokens across a partition border, to the last token of the context."""
    rng = np.random.default_rng(1)
    seq = pair.add()
    pair.step([(seq, tokens(rng, 5))], "all")
    pair.step([(seq, tokens(rng, 1))])
    pair.step([(seq, tokens(rng, 9))], "none")
    for _ in range(4):
        pair.step([(seq, tokens(rng, 1))])
    pair.step([(seq, tokens(rng, 20))], "all")
    pair.step([(seq, tokens(rng, 1))])
    assert pair.pager.length(seq) == pair.plan.arena.context
    pair.free(seq)


def mixed_batches(pair: HostPair) -> None:
    """Mixes decode and prefill, very different lengths, and sequences with and without rows of logits."""
    if pair.plan.arena.max_sequences < 4:
        pytest.skip("one sequence")
    rng = np.random.default_rng(2)
    a, b, c, d = (pair.add() for _ in range(4))
    pair.step([(a, tokens(rng, 31))], "none")
    pair.step([(b, tokens(rng, 4)), (a, tokens(rng, 1)), (c, tokens(rng, 13))])
    pair.step([(a, tokens(rng, 1)), (b, tokens(rng, 1)), (c, tokens(rng, 1)), (d, tokens(rng, 1))])
    pair.step([(d, tokens(rng, 1)), (a, tokens(rng, 1)), (b, tokens(rng, 10))], {d: "none", a: "last", b: "all"})
    pair.step([(c, tokens(rng, 1)), (d, tokens(rng, 1))], {c: "none", d: "last"})
    pair.step([(c, tokens(rng, 1)), (b, tokens(rng, 1))], "none")
    for seq in (a, b, c, d):
        pair.free(seq)


def largest_batches(pair: HostPair) -> None:
    """Uses as many tokens, rows, sequences and partitions as the plan has memory for, to test the buffers' places."""
    rng = np.random.default_rng(4)
    plan = pair.plan
    seqs = [pair.add() for _ in range(plan.arena.max_sequences)]
    share = plan.max_tokens // len(seqs)
    pair.step([(s, tokens(rng, share)) for s in seqs], "all")
    for s in seqs:
        pair.step([(s, tokens(rng, plan.arena.context - 1 - share))])
    pair.step([(s, tokens(rng, 1)) for s in seqs])
    for s in seqs:
        pair.free(s)


def forks_share_and_then_part(pair: HostPair) -> None:
    """Checks that a fork inside a block copies the block before a write, and that a fork between blocks does not."""
    if pair.plan.arena.max_sequences < 4:
        pytest.skip("one sequence")
    rng = np.random.default_rng(3)
    block = pair.plan.arena.block_size
    a = pair.add()
    pair.step([(a, tokens(rng, 18))])
    b, c = pair.fork(a), pair.fork(a)
    copies = sum(n for k, n in pair.host.launches.items() if k.startswith("copy_blocks"))
    pair.step([(a, [1]), (b, [2]), (c, [3])])
    launched = sum(n for k, n in pair.host.launches.items() if k.startswith("copy_blocks")) - copies
    expected = len(pair.plan.arena.caches) if 18 % block else 0
    assert launched == expected, f"{launched} launches of copies for a fork at 18 of blocks of {block}"
    rows = pair.step([(c, [4]), (a, tokens(rng, 6)), (b, [5])])
    for seq, row in zip((c, a, b), rows, strict=True):
        check_logits(f"sequence {seq}", row, pair.fresh_logits(pair.fed[seq]), pair.dtype)
    for seq in (a, b, c):
        pair.free(seq)


def random_interleaving(pair: HostPair, seed: int) -> None:
    """Adds, grows, forks and frees sequences in a small arena; each must end with the logits of a lone sequence."""
    rng = np.random.default_rng(seed)
    context, most = pair.plan.arena.context, pair.plan.arena.max_sequences
    last: dict[int, np.ndarray] = {}
    checked = 0

    def leave(seq: int) -> None:
        nonlocal checked
        if seq in last:
            check_logits(f"sequence {seq}", last.pop(seq), pair.fresh_logits(pair.fed[seq]), pair.dtype)
            checked += 1
        pair.free(seq)

    for _ in range(14):
        for seq in [s for s in pair.fed if pair.pager.length(s) == context]:
            leave(seq)
        live = list(pair.fed)
        if not live or (len(live) < most and rng.random() < 0.4):
            new = pair.fork(int(rng.choice(live))) if live and rng.random() < 0.5 else pair.add()
            live.append(new)
        elif len(live) > 1 and rng.random() < 0.25:
            leave(live.pop(int(rng.integers(len(live)))))
        chosen = rng.permutation(live)[: int(rng.integers(1, len(live) + 1))].tolist()
        decode = rng.random() < 0.5
        longest = min(8, *(context - pair.pager.length(s) for s in chosen))
        counts = [1 if decode or rng.random() < 0.3 else int(rng.integers(1, longest + 1)) for _ in chosen]
        parts = [(s, tokens(rng, count)) for s, count in zip(chosen, counts, strict=True)]
        last |= dict(zip(chosen, pair.step(parts), strict=True))
    for seq in list(pair.fed):
        leave(seq)
    assert checked, "the schedule must leave sequences to compare"
    assert pair.pager.num_free_blocks == pair.pager.num_blocks


SCHEDULES: dict[str, Callable[[HostPair], None]] = {
    "one-sequence": one_sequence,
    "mixed-batches": mixed_batches,
    "largest-batches": largest_batches,
    "forks": forks_share_and_then_part,
    **{f"random-{seed}": partial(random_interleaving, seed=seed) for seed in range(3)},
}

SHORT_SCHEDULES = [name for name in SCHEDULES if name not in ("random-1", "random-2")]
"""Those of `make test`, where each is run by several programs."""
