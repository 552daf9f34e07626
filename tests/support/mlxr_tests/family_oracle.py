"""Runs a model's own files through our importer and a host, and compares the logits with those of other code."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.driver import compile_spec
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.loading.imported_model import import_model
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.select import make_host
from mlxr.runtime.weights.check_metadata import check_metadata
from mlxr.runtime.weights.open_weights import open_weights

Floats = npt.NDArray[np.floating[Any]]
LENGTHS = (21, 14)
STEPS = [(9, 4), (5, 1), *[(1, 1)] * 4, (3, 2), (0, 3)]
"""Tokens of each sequence in each step: two prompts, a chunk beside one token, decode, and one last chunk."""
EXACT = ImportOptions(max_sequences=2, compute="exact", activation_dtype="f32", cache_dtype="f32")


def prompts(vocab_size: int) -> list[list[int]]:
    """Two sequences of tokens."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, vocab_size, length).tolist() for length in LENGTHS]


def logits_of(path: Path, tokens: Sequence[Sequence[int]], host: str, options: ImportOptions = EXACT) -> list[Floats]:
    """Logits of the model in `path` after every token of two sequences, computed step by step."""
    spec, weights = import_model(path, options)
    artifact = compile_spec(spec, targets=("metal",) if host == "sim" else ("cpu",)).artifact
    file = open_weights(weights)
    check_metadata(file, artifact.spec)
    plan = artifact.plan
    arena, pager = Arena(plan.arena), Pager.from_geometry(plan.arena)
    runner = make_host(host, artifact, file, arena, threads=None, progress=None)
    return logits_in_steps(lambda batch: runner.read(runner.step(batch)).copy(), pager, plan.query_tile, tokens)


def logits_in_steps(
    step: Callable[[Batch], Floats], pager: Pager, query_tile: int, tokens: Sequence[Sequence[int]]
) -> list[Floats]:
    """Logits after every token of two sequences: prompts, chunks beside single tokens, decode.

    Args:
        step: computes a batch.
        pager: of the host's arena.
        query_tile: of the plan.
        tokens: of each sequence.
    """
    ids = [pager.add_sequence() for _ in tokens]
    rows: list[list[Floats]] = [[] for _ in tokens]
    for counts in STEPS:
        requests = [
            BatchRequest(seq, list(tokens[seq])[pager.length(seq) :][:count], pager.length(seq), "all")
            for seq, count in zip(ids, counts, strict=True)
            if count
        ]
        batch = Batch.build(requests, pager, query_tile)
        pager.take_copies()
        logits = iter(step(batch))
        for request in requests:
            rows[request.seq_id] += [next(logits) for _ in request.tokens]
    return [np.stack(sequence) for sequence in rows]


def mlx_lm_logits(model: Any, tokens: Sequence[Sequence[int]]) -> list[Floats]:
    """mlx-lm's logits after every token of every sequence, each computed as a whole."""
    return [np.array(model(mx.array([list(sequence)]))[0].astype(mx.float32)) for sequence in tokens]


def relative_error(got: Sequence[Floats], want: Sequence[Floats]) -> float:
    """The largest relative norm of the difference over the sequences."""
    return max(float(np.linalg.norm(g - w) / np.linalg.norm(w)) for g, w in zip(got, want, strict=True))
