"""Logits after each token of a text, as many rows at a time as a step computes."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Plan
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.host import Host

Adapters = Sequence[tuple[int, float]] | None
"""What the sequence uses; see `launch_step`."""


def logit_chunks(
    plan: Plan, pager: Pager, ids: Sequence[int], running_host: Callable[[], Host], adapters: Adapters
) -> Iterator[npt.NDArray[np.float32]]:
    """Logits after each token, in order: [rows, vocab], f32.

    Args:
        plan: of the model.
        pager: of its arena.
        ids: the tokens, which fit into the context.
        running_host: gives the host, which nobody here keeps; raises ModelClosedError.
        adapters: what the sequence uses.
    """
    chunk = min(plan.max_tokens, plan.max_rows)
    seq_id = pager.add_sequence()
    try:
        for start in range(0, len(ids), chunk):
            yield _rows(running_host(), pager, BatchRequest(seq_id, ids[start : start + chunk], start, "all"), adapters)
    finally:
        pager.free(seq_id)


def _rows(host: Host, pager: Pager, request: BatchRequest, adapters: Adapters) -> npt.NDArray[np.float32]:
    return host.read(launch_step(host, pager, [request], adapters=adapters))
