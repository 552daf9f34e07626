"""What comes right before a step on a host: sequences grow, blocks that they share are copied, and it is launched."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import of_group
from mlxr.runtime.cache.equal_growth import Slots
from mlxr.runtime.cache.pager import Evicted, Pager
from mlxr.runtime.hosts.batch import Batch, Requests, slots_of_steps
from mlxr.runtime.hosts.host import Host, Logits
from mlxr.runtime.hosts.likeliest import Asked, Grown, MoreSteps

SaveEvicted = Callable[[Sequence[Evicted]], None]
"""Takes blocks that the prefix cache gave up."""


def launch_step(
    host: Host,
    pager: Pager,
    requests: Requests,
    tokens: mx.array | None = None,
    save: SaveEvicted | None = None,
    tops: int = 0,
    adapters: Sequence[tuple[int, float]] | None = None,
) -> Logits:
    """Grows sequences, copies the blocks that they share, and runs the host's step; its logits may be lazy.

    Args:
        host: where it runs.
        pager: of the host's arena.
        requests: the sequences' parts of the step.
        tokens: [tokens], int32: token ids on the device. Of the requests' own ids, only the number then matters.
        save: is given the blocks that the prefix cache gave up, while they still hold what they held; None: they are
            lost.
        tops: see `Batch.tops`.
        adapters: what each sequence uses, see `Batch.using`; None: none uses any.

    Raises:
        ArenaFullError: the arena cannot hold all requests; nothing has been appended.
        HostError: the step cannot be launched, or failed.
    """
    return host.step(batch_to_launch(host, pager, requests, tokens, save, tops, adapters))


def batch_to_launch(
    host: Host,
    pager: Pager,
    requests: Requests,
    tokens: mx.array | None = None,
    save: SaveEvicted | None = None,
    tops: int = 0,
    adapters: Sequence[tuple[int, float]] | None = None,
    steps: int = 1,
) -> Batch:
    """What `launch_step` does before the step: the batch, which is launched next. For `steps` see `Batch.build`.

    Raises:
        ArenaFullError: the arena cannot hold all requests; nothing has been appended.
    """
    batch = host.batch_of(requests, pager, tokens, steps)
    if tops:
        batch = replace(batch, tops=tops)
    if adapters is not None:
        batch = batch.using(adapters)
    copy_shared_blocks(host, pager, save)
    return batch


def copy_shared_blocks(host: Host, pager: Pager, save: SaveEvicted | None) -> None:
    """What comes between the growth of sequences and a step: blocks that were given up are saved, others copied.

    Args:
        host: where the step runs.
        pager: of the host's arena.
        save: see `launch_step`.
    """
    evicted = pager.take_evicted()
    if save is not None:
        save(evicted)
    if copies := pager.take_copies():
        host.copy_blocks(copies)
    for group in range(1, len(pager.others) + 1):
        if copies := pager.take_copies_of(group):
            host.copy_blocks(copies, group)


def more_steps(
    host: Host,
    pager: Pager,
    seq_ids: Sequence[int],
    starts: list[int],
    count: int,
    save: SaveEvicted | None,
    first: int = 0,
    asked: Asked | None = None,
) -> MoreSteps:
    """What the host must know of steps that go on; sequences with states go on by single steps.

    Args:
        host: where they run.
        pager: of the host's arena.
        seq_ids: the sequences.
        starts: tokens of each before the steps.
        count: how many steps.
        save: see `launch_step`.
        first: see `MoreSteps`.
        asked: likewise.
    """

    def grow() -> Grown | None:
        slots = pager.append_to_each(seq_ids, starts, count) if pager.states is None or count == 1 else None
        if slots is None:
            return None
        by_name: dict[str, Slots] = {"slots": slots}
        tables = {"block_tables": pager.block_tables(seq_ids)}
        for group in range(1, len(pager.others) + 1):
            table = tables[of_group("block_tables", group)] = pager.block_tables(seq_ids, group)
            by_step = slots_of_steps(table, np.array(starts, np.int32), count, pager.block_size)
            by_name[of_group("slots", group)] = by_step.reshape(-1)
        if pager.states is not None:
            tables["state_table"] = pager.states.step_one_each(seq_ids)
        copy_shared_blocks(host, pager, save)
        return Grown(by_name, tables)

    return MoreSteps(count, starts, grow, first, asked)
