"""What the server says when it has started: what it serves, where, and how long prompts may be."""

import asyncio
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from mlxr.compiler.errors import MlxrError
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.model_source import ModelSource

_PLAN_SECONDS = 10.0
"""How long they wait for the contexts of models that are not compiled yet."""


async def tell_first_lines(pool: ModelPool, url: str, seconds: float = _PLAN_SECONDS, others: str = "") -> None:
    """Says it on standard error: as soon as the contexts are known, or after some seconds with those that are.

    Args:
        pool: the models, those of the registry included.
        url: where they are served.
        seconds: how long it waits.
        others: where other machines reach them; empty: nowhere else.
    """
    sources = [model.source for model in pool.models]
    contexts: dict[str, str] = {}
    planning = asyncio.create_task(asyncio.to_thread(_plan, sources, contexts, time.monotonic() + seconds))
    await asyncio.wait({planning}, timeout=seconds)
    known = dict(contexts)
    names = ", ".join(source.name for source in sources) or "no models yet"
    if len(sources) == 1 and known:
        print(f"serving {names} at {url} with {known[sources[0].name]}", file=sys.stderr)
    else:
        print(f"serving {names} at {url}", file=sys.stderr)
        for name, context in known.items():
            print(f"{name} has {context}", file=sys.stderr)
        if len(known) < len(sources):
            print("the log tells the context of each model that is loaded", file=sys.stderr)
    if others:
        print(f"other machines reach it at {others}, or by a name that --allow-host allows", file=sys.stderr)
    print(f"open that in a browser, or point OpenAI's clients at {url}/v1", file=sys.stderr, flush=True)


def _plan(sources: Iterable[ModelSource], contexts: dict[str, str], end: float) -> None:
    """Finds how long sequences may be, model by model. Whoever asks for one that has none is told why."""
    for source in sources:
        if time.monotonic() >= end:
            return
        with suppress(MlxrError, OSError):
            contexts[source.name] = source.planned_context()
