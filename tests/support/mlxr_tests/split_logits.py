"""The logits of a model's own files over several ranks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlxr.compiler.driver import compile_spec
from mlxr.compiler.spec.parallel import Parallel
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights.check_metadata import check_metadata
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.family_oracle import EXACT, Floats, logits_in_steps, relative_error
from mlxr_tests.thread_ranks import ThreadRanks


def check_split(
    path: Path,
    tokens: Sequence[Sequence[int]],
    wanted: Sequence[Floats],
    tolerance: float,
    parallel: Parallel = Parallel(tensor=2),  # noqa: B008 (it is frozen)
) -> None:
    """Ranks on host cpu, each with its part of the files, give these logits and the same greatest ones.

    Args:
        path: a folder or a GGUF file, as `mlxr run` takes it.
        tokens: of each sequence.
        wanted: of each sequence, the logits after each token.
        tolerance: see `relative_error`.
        parallel: how many ranks, and how the model is split.
    """
    spec, weights = import_model(path, EXACT)
    artifact = compile_spec(spec.model_copy(update={"parallel": parallel}), targets=["cpu"]).artifact
    file = open_weights(weights)
    check_metadata(file, artifact.spec)
    ranks = ThreadRanks(artifact, file)
    got = logits_in_steps(ranks.step, ranks.pager, ranks.plan.query_tile, tokens)
    assert relative_error(got, wanted) < tolerance
    for logits, whole in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(logits.argmax(axis=1), whole.argmax(axis=1))
