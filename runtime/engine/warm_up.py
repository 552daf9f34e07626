"""Takes one step of each kind at load, on hosts that build what a step needs when they first meet it.

Kernels, traces and what GPU libraries prepare for a shape then cost no prompt anything. The steps are real ones, of
sequences that are freed again.
"""

from collections.abc import Sequence
from typing import Literal

import mlx.core as mx

from mlxr.compiler.artifact import Plan
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.pipeline import Draws, launch_step
from mlxr.runtime.engine.sampling import Sampler, Sampling
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.host import Host, Progress

_SAMPLINGS = (Sampling(), Sampling(temperature=1.0, seed=0))


def warm_up(host: Host, pager: Pager, progress: Progress | None = None) -> None:
    """Runs prompts of every size and a few decode steps, and counts none of it.

    Args:
        host: where.
        pager: of the host's arena; no sequence is in use.
        progress: called with (`steps`, done, in all).

    Raises:
        HostError: a step cannot be built, or fails.
    """
    plan, counted = host.plan, host.launches.copy()
    sizes = prompt_sizes(plan)
    contexts = decode_contexts(plan)
    total = len(sizes) + len(contexts)
    # The largest first: what is cached of it gives way to what shorter prompts use, and these are more.
    for done, tokens in enumerate(reversed(sizes)):
        if progress is not None:
            progress("steps", done, total)
        if tokens == sizes[-1] and tokens < plan.arena.context:
            _prompt(host, pager, tokens, "none")
        _prompt(host, pager, tokens, "last")
    for done, (sequences, context) in enumerate(contexts):
        if progress is not None:
            progress("steps", len(sizes) + done, total)
        _decode(host, pager, sequences, context)
    # What was built last may have made room for itself in MLX's memory: one more prompt finds out.
    _prompt(host, pager, sizes[len(sizes) // 2], "last")
    host.launches.clear()
    host.launches.update(counted)


def prompt_sizes(plan: Plan) -> list[int]:
    """Tokens of prompts that differ in what is built for them: all padded sizes, else one for each set of launches."""
    most = min(plan.max_tokens, plan.arena.context)
    if plan.padded_sizes:
        # The longest prompt may be filled up to more than it may have itself.
        found = {size for size in plan.padded_sizes if size < plan.padded_tokens(most)} | {most}
    else:
        borders = {2, most}
        for launch in plan.step("prefill").launches:
            conditions = [*(launch.when.parts if launch.when else ()), *launch.mlx]
            for one in (one for one in conditions if one.dim == "tokens"):
                borders |= {one.minimum, (one.maximum or 0) + 1}
        found = {size for size in borders if 2 <= size <= most}
    return sorted(found) or [most]


def decode_contexts(plan: Plan) -> list[tuple[int, int]]:
    """Sequences, and tokens of each, of decode steps that differ in their launches: few and many, long contexts."""
    context, whole = plan.arena.context, plan.whole_context
    lengths = [1, *([whole + 1] if whole + 1 < context else [])]
    many = [(plan.arena.max_sequences, 1)] if plan.arena.max_sequences > 1 else []
    return [(1, length) for length in lengths if length < context] + many


def _prompt(host: Host, pager: Pager, tokens: int, rows: Literal["last", "none"]) -> None:
    seq_id = pager.add_sequence()
    try:
        _draw(host, pager, [BatchRequest(seq_id, [0] * tokens, 0, rows)], _SAMPLINGS[:1])
    finally:
        pager.free(seq_id)


def _decode(host: Host, pager: Pager, sequences: int, context: int) -> None:
    """Two decode steps, of which the second takes the first one's tokens where they are."""
    ids: list[int] = []
    try:
        while len(ids) < sequences and pager.can_add_sequence():
            ids.append(pager.add_sequence())
        growths = [(seq_id, context + 2) for seq_id in ids]
        if len(ids) < sequences or not pager.can_append_all(growths):
            return
        pager.append_all([(seq_id, context) for seq_id in ids])
        draws = _draw(host, pager, [BatchRequest(seq_id, [0], context) for seq_id in ids], _SAMPLINGS)
        after = [BatchRequest(seq_id, [0], context + 1) for seq_id in ids]
        _draw(host, pager, after, _SAMPLINGS[:1], draws.tokens(range(len(ids))))
    finally:
        for seq_id in ids:
            pager.free(seq_id)


def _draw(
    host: Host,
    pager: Pager,
    requests: Sequence[BatchRequest],
    samplings: Sequence[Sampling],
    tokens: mx.array | None = None,
) -> Draws:
    """A step, and tokens drawn from its logits in each way; the last way's. Nobody looks whether they make sense."""
    logits = launch_step(host, pager, requests, tokens)
    rows = [row for row, request in enumerate(r for r in requests if r.rows == "last")]
    for sampling in samplings:
        draws = Draws(host, logits, rows, [Sampler(sampling)] * len(rows))
        host.read(host.copy_to_read(draws.tokens(range(len(rows)))) if rows else host.arena.token | 0)
    return draws
