"""Launches a step: its sequences grow, shared blocks are copied, and the host runs it.

On hosts that pipeline, the step and the sampling of its tokens (`Samples`) are lazy MLX graphs. The next step takes the
sampled tokens where they are, on the device, and is launched before anyone has read them. Nothing else that it needs
depends on them: positions, slots, context lengths, and the random numbers that choose tokens are known.

To give up a launched step (its request has ended, or lost its blocks), it is enough to free or truncate the
sequence. The step still runs and writes its slot, whose block may have a new owner by then. That is harmless. One
thread launches all steps and copies, and each one binds the arena token that the one before it made. So the late write
happens before everything that the new owner launches, and an owner writes a slot before it reads it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx

from mlxr.runtime.cache.pager import Evicted, Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest, DecodeRequests
from mlxr.runtime.hosts.host import Host, Logits


def launch_step(
    host: Host,
    pager: Pager,
    requests: Sequence[BatchRequest] | DecodeRequests,
    tokens: mx.array | None = None,
    save: Callable[[Sequence[Evicted]], None] | None = None,
    tops: int = 0,
) -> Logits:
    """Grows the requests' sequences and launches the step; the logits are lazy on hosts that pipeline.

    Args:
        host: where it runs.
        pager: of the host's arena.
        requests: the sequences' parts of the step.
        tokens: [tokens], int32: token ids on the device. Of the requests' own ids, only the number then matters.
        save: is given the blocks that the prefix cache gave up, while they still hold what they held; None: they are
            lost.
        tops: see `Batch.tops`.

    Raises:
        ArenaFullError: the arena cannot hold all requests; nothing has been appended.
        HostError: the step cannot be launched, or failed.
    """
    batch = Batch.build(requests, pager, host.plan.query_tile, tokens)
    if tops:
        batch = replace(batch, tops=tops)
    evicted = pager.take_evicted()
    if save is not None:
        save(evicted)
    if copies := pager.take_copies():
        host.copy_blocks(copies)
    for group in range(1, len(pager.others) + 1):
        if copies := pager.take_copies_of(group):
            host.copy_blocks(copies, group)
    return host.step(batch)
