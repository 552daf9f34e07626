"""The model's own head that guesses tokens: whether it is asked for, and its artifact, beside the model's."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mlxr.compiler.artifact import Artifact, Chip
from mlxr.compiler.errors import MlxrError, RequestError
from mlxr.compiler.spec.change import Changes
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.artifact_cache import cached_artifact
from mlxr.loading.find_model import FoundModel
from mlxr.loading.options import LoadOptions


def changes_with_head(options: LoadOptions, ranks: int = 1, *, may_use: bool = True) -> Changes:
    """The changes that the options ask for, and whether the model has its head.

    Args:
        options: how the model is loaded.
        ranks: over how many it is split.
        may_use: whether the head may be used.

    Raises:
        RequestError: the head is asked for, and something else that goes without it.
    """
    changes, why = options.changes, None
    if ranks > 1 or changes.parallel is not None:
        why = "the model is split over ranks"
    elif changes.output == "hidden":
        why = "the model is loaded for embeddings"
    if options.mtp == "on" and why is not None:
        raise RequestError(f"{why}, which goes without its own head: use mtp auto or off")
    guesses_otherwise = options.draft is not None or options.prompt_lookup
    uses = may_use and options.mtp != "off" and why is None and not guesses_otherwise
    return replace(changes, mtp=uses)


def has_head(found: FoundModel) -> bool:
    """Whether a model's files have a head."""
    from mlxr.runtime.weights.head_tensors import with_head  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.weights.open_weights import open_weights  # noqa: PLC0415

    path = found.options.weights or (found.model if found.kind == "files" else None)
    try:
        return path is not None and with_head(open_weights(str(path))) is not None
    except MlxrError:
        return False


def head_of(
    artifact: Artifact, weights: Path, options: LoadOptions, chip: Callable[[], Chip | None]
) -> Artifact | None:
    """The artifact of a model's head; None: it has none, or that is not used.

    Args:
        artifact: the model's, compiled with `changes_with_head`.
        weights: where its weights are.
        options: how it is loaded.
        chip: gives the chip whose launch geometry to take.

    Raises:
        RequestError: the head is asked for, and there is none.
        MlxrError: it cannot be compiled, or its tensors are not what the model's layers make one expect.
    """
    if artifact.spec.model.mtp is None:
        if options.mtp == "on":
            raise RequestError(
                f"{artifact.spec.name} has no head of its own that guesses tokens, or its spec does not name it "
                "(model.mtp): use mtp auto or off"
            )
        return None
    spec = artifact.spec.model_copy(update={"output": "guesses"})
    return cached_artifact(spec, chip(), lambda: _check_tensors(spec, weights))


def _check_tensors(spec: ModelSpec, weights: Path) -> None:
    from mlxr.compiler.targets.source_graph import source_weights  # noqa: PLC0415 (not for what is cached)
    from mlxr.runtime.weights.check_tensors import check_tensors  # noqa: PLC0415
    from mlxr.runtime.weights.head_tensors import require_head  # noqa: PLC0415
    from mlxr.runtime.weights.open_weights import open_weights  # noqa: PLC0415

    head = source_weights(spec)
    check_tensors(require_head(open_weights(weights)), head.weights, [re.compile(p) for p in head.ignored_tensors])
