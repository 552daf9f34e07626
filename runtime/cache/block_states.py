"""The state of each block of the arena, for people who watch it."""

from collections.abc import Iterable

from mlxr.runtime.cache.blocks import BlockPool

FREE, CACHED, USED, SHARED = "f", "c", "u", "s"
"""Nobody has it; only the prefix cache has it; a sequence or a pending copy uses it; several sequences use it."""


def block_states(pool: BlockPool, idle: Iterable[int], copied: Iterable[int]) -> str:
    """One letter for each block: `FREE`, `CACHED`, `USED` or `SHARED`.

    Args:
        pool: the blocks.
        idle: blocks that only the prefix cache has.
        copied: sources of pending copies.
    """
    states = [USED if count == 1 else SHARED if count else FREE for count in pool.references]
    for block_id in idle:
        states[block_id] = CACHED
    for block_id in copied:
        if not pool.references[block_id]:
            states[block_id] = USED
    return "".join(states)
