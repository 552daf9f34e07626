"""What a head guesses after a text, step by step, without an engine."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.choose_arena import Head
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.engine.speculation.head_steps import HeadPart, head_batch
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.select import make_host, resolve_host
from mlxr.runtime.weights.weight_file import WeightFile


def guessed_logits(
    model: Artifact, file: WeightFile, head: Head, name: str, tokens: Sequence[int], count: int, cut: int | None = None
) -> npt.NDArray[np.float32]:
    """The logits of the head's guesses after a text, each after the likeliest one before.

    Args:
        model: the compiled model.
        file: its weights.
        head: the head.
        name: of the host.
        tokens: the text, with the token that the model chose last.
        count: how many guesses.
        cut: where the text is cut into two steps; None: nowhere.
    """
    arena = resolve_host(name, model.plan.targets).load().arena_type(model.plan.arena)
    host = make_host(name, model, file, arena)
    own = make_host(name, head.artifact, head.file, arena, lender=host)
    pager, tile = Pager.from_geometry(model.plan.arena), head.artifact.plan.query_tile
    pager.append(pager.add_sequence(), 20)  # what is tried is not in the arena's first block
    seq_id, length, found = pager.add_sequence(), len(tokens) - 1, []
    for begin, end in pairwise([0, cut, length] if cut else [0, length]):
        host.read(launch_step(host, pager, [BatchRequest(seq_id, list(tokens[begin:end]), begin)]))
    pager.append(seq_id, count)
    pager.take_copies()
    if cut:
        own.step(head_batch(pager, tile, [HeadPart(seq_id, 0, tokens[1 : cut + 1])], with_rows=False))
    part = HeadPart(seq_id, cut or 0, tokens[(cut or 0) + 1 :])
    for i in range(count):
        found.append(own.read(own.step(head_batch(pager, tile, [part])))[0].copy())
        best = int(np.argmax(found[-1]))
        part = HeadPart(seq_id, length + i, [best if head.ids is None else int(head.ids[best])])
    host.close()
    own.close()
    return np.stack(found)
