"""The line of statistics and servers that says how long a sequence may be, and why."""

from mlxr.compiler.artifact import ArenaGeometry, size
from mlxr.runtime.memory.fitting_arena import ContextLimit


def context_line(limit: ContextLimit, arena: ArenaGeometry, takes_pages: bool) -> str:
    """For people: `context 131,072, all that the model has; the cache takes memory as it is used, up to 4.0 GiB`.

    Args:
        limit: of the context.
        arena: of the model.
        takes_pages: as `Arena.takes_pages` says.
    """
    memory = size(arena.size_bytes)
    if takes_pages:
        return f"{limit}; the cache takes memory as it is used, up to {memory}"
    return f"{limit}; the cache takes {memory}"
