"""The arena of a trial: of one that holds a long context, only what the trial uses."""

from mlxr.compiler.artifact import ArenaGeometry, Plan
from mlxr.runtime.memory.fitting_arena import has_free_size

_TOKENS = 8192


def tried_arena(plan: Plan, context: int) -> ArenaGeometry:
    """The plan's arena, with room for no more than all sequences of so many tokens, or of 8192.

    Args:
        plan: of the artifact that is tried.
        context: most tokens of a sequence.
    """
    arena = plan.arena
    if not has_free_size(arena):
        return arena
    each = -(-max(context, plan.max_tokens, _TOKENS) // arena.block_size)
    return arena.with_blocks(min(arena.num_blocks, arena.max_sequences * each))
