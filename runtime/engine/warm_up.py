"""Runs one step of each kind at load, on hosts that build what a step needs when they first meet it.

So no prompt waits for kernels, traces, or what GPU libraries prepare for a shape. The steps are real ones, of sequences
that are freed afterwards; a host that can prepare a step by itself runs few of them.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal

import mlx.core as mx

from mlxr.compiler.artifact import Plan, Program
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.samples import Samples
from mlxr.runtime.engine.sampling import Row, Sampler, Sampling
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.host import Host, Progress

_SAMPLINGS = (Sampling(), Sampling(temperature=1.0, seed=0))


def warm_up(host: Host, pager: Pager, progress: Progress | None = None) -> None:
    """Runs prompts of every size and a few decode steps; `Host.launches` does not count them.

    Args:
        host: the host to warm up.
        pager: of the host's arena; no sequence is in use.
        progress: called with (`steps`, number done, number of all).

    Raises:
        HostError: a step cannot be built, or fails.
    """
    plan, counted = host.plan, host.launches.copy()
    sizes = prompt_sizes(plan, host.program, pager.context)
    contexts = decode_contexts(plan, pager.context)
    total = len(sizes) + len(contexts)
    # The largest first: shorter prompts are more frequent, and what MLX caches for them should be the newest.
    for done, tokens in enumerate(reversed(sizes)):
        if progress is not None:
            progress("steps", done, total)
        if tokens == sizes[-1] and tokens < pager.context:
            _prompt(host, pager, tokens, "none")
        with nullcontext() if tokens in (sizes[0], sizes[-1]) else host.only_preparing():
            _prompt(host, pager, tokens, "last")
    for done, (sequences, context) in enumerate(contexts):
        if progress is not None:
            progress("steps", len(sizes) + done, total)
        for tops in (0, 1) if host.gathers_tops else (0,):
            _decode(host, pager, sequences, context, tops)
    # The last steps may have pushed older buffers out of MLX's cache: one more prompt brings them back.
    _prompt(host, pager, sizes[len(sizes) // 2], "last")
    host.launches.clear()
    host.launches.update(counted)


def prompt_sizes(plan: Plan, program: Program, context: int) -> list[int]:
    """Lengths of prompts for which different things are built: all padded sizes, else one for each set of launches."""
    most = min(plan.max_tokens, context)
    if plan.padded_sizes:
        # Padding may make the longest prompt longer than a prompt may be.
        sizes = {size for size in plan.padded_sizes if size < plan.padded_tokens(most)} | {most}
    else:
        borders = {2, most}
        for launch in program.phase("prefill").launches:
            for condition in (part for part in launch.conditions if part.dim == "tokens"):
                borders |= {condition.minimum, (condition.maximum or 0) + 1}
        sizes = {size for size in borders if 2 <= size <= most}
    return sorted(sizes) or [most]


def decode_contexts(plan: Plan, context: int) -> list[tuple[int, int]]:
    """Decode steps with different launches, as (sequences, tokens of each): one and many, short and long contexts."""
    whole = plan.whole_context
    lengths = [1, *([whole + 1] if whole + 1 < context else [])]
    many = [(plan.arena.max_sequences, 1)] if plan.arena.max_sequences > 1 else []
    return [(1, length) for length in lengths if length < context] + many


def _prompt(host: Host, pager: Pager, tokens: int, rows: Literal["last", "none"]) -> None:
    seq_id = pager.add_sequence()
    try:
        _sample(host, pager, [BatchRequest(seq_id, [0] * tokens, 0, rows)], _SAMPLINGS[:1])
    finally:
        pager.free(seq_id)


def _decode(host: Host, pager: Pager, sequences: int, context: int, tops: int) -> None:
    """Two decode steps; the second takes the tokens of the first on the device."""
    ids: list[int] = []
    try:
        while len(ids) < sequences and pager.can_add_sequence():
            ids.append(pager.add_sequence())
        growths = [(seq_id, context + 2) for seq_id in ids]
        if len(ids) < sequences or not pager.has_room(growths):
            return
        for seq_id in ids:
            pager.pass_over(seq_id, context)
        samples = _sample(host, pager, [BatchRequest(seq_id, [0], context) for seq_id in ids], _SAMPLINGS, tops=tops)
        after = [BatchRequest(seq_id, [0], context + 1) for seq_id in ids]
        _sample(host, pager, after, _SAMPLINGS[:1], samples.tokens if host.pipelines else None, tops)
    finally:
        for seq_id in ids:
            pager.free(seq_id)


def _sample(
    host: Host,
    pager: Pager,
    requests: Sequence[BatchRequest],
    samplings: Sequence[Sampling],
    tokens: mx.array | None = None,
    tops: int = 0,
) -> Samples:
    """Runs a step and samples its logits in each way; returns the tokens of the last way."""
    logits = launch_step(host, pager, requests, tokens, tops=tops)
    rows = [row for row, request in enumerate(r for r in requests if r.rows == "last")]
    for sampling in samplings:
        samples = Samples(host, logits, rows, [Row(Sampler(sampling), 0)] * len(rows))
        if rows and not host.pipelines:
            samples.read()
        else:
            host.read(host.copy_to_read(samples.tokens) if rows else host.arena.token | 0)
    return samples
