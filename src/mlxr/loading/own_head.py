"""The head that guesses tokens for a model: whether it is used, and its artifact, beside the model's."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.compiler.artifact import Artifact, Chip
from mlxr.compiler.errors import MlxrError, RequestError, WeightsError, blaming_head
from mlxr.compiler.spec.change import Changes
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.artifact_cache import cached_artifact
from mlxr.loading.eagle_head import EagleHead
from mlxr.loading.find_model import FoundModel
from mlxr.loading.options import LoadOptions

if TYPE_CHECKING:
    from mlxr.runtime.engine.choose_arena import Head
    from mlxr.runtime.weights.weight_file import WeightFile

_LOG = logging.getLogger(__name__)


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
    elif options.experts_on_cpu:
        why = "the CPU has some layers' experts"
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
    artifact: Artifact,
    weights: Path,
    options: LoadOptions,
    chip: Callable[[], Chip | None],
    eagle: EagleHead | None = None,
) -> "Head | None":
    """A model's head; None: it has none, or that is not used.

    Args:
        artifact: the model's, compiled with `changes_with_head`.
        weights: where its weights are.
        options: how it is loaded.
        chip: gives the chip whose launch geometry to take.
        eagle: the head of other files, with which the artifact was compiled; None: there is none.

    Raises:
        RequestError: the model's own head is asked for, and there is none.
        MlxrError: it cannot be compiled, or its tensors are not what the model's layers make one expect.
    """
    from mlxr.runtime.engine.choose_arena import Head  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.weights.head_tensors import require_head  # noqa: PLC0415
    from mlxr.runtime.weights.open_weights import open_weights  # noqa: PLC0415

    if not artifact.spec.model.has_head:
        _tell_why_not(artifact, weights, options)
        return None
    spec = artifact.spec.model_copy(update={"output": "guesses"})
    with blaming_head():
        opened = open_weights(weights)
        file = require_head(opened) if eagle is None else eagle.beside(opened, spec)
        made = cached_artifact(spec, chip(), lambda: _check_tensors(spec, file))
        return Head(made, file, None if eagle is None else eagle.ids(spec))


def _tell_why_not(artifact: Artifact, weights: Path, options: LoadOptions) -> None:
    """Refuses a model without a head of its own where that is asked for; tells of one that lacks something.

    Raises:
        RequestError: it has none.
        WeightsError: it lacks something.
    """
    from mlxr.runtime.weights.head_tensors import lack_of_head  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.weights.open_weights import open_weights  # noqa: PLC0415

    if options.mtp == "off":
        return
    lack = lack_of_head(open_weights(weights))
    if options.mtp == "on":
        if lack is not None:
            raise WeightsError(lack)
        raise RequestError(
            f"{artifact.spec.name} has no head of its own that guesses tokens, or its spec does not name it "
            "(model.mtp): use mtp auto or off"
        )
    if lack is not None and changes_with_head(options).mtp:
        _LOG.warning("note: the model's own head is not used: %s", lack)


def _check_tensors(spec: ModelSpec, file: "WeightFile") -> None:
    from mlxr.compiler.targets.source_graph import source_weights  # noqa: PLC0415 (not for what is cached)
    from mlxr.runtime.weights.check_tensors import check_tensors  # noqa: PLC0415

    head = source_weights(spec)
    check_tensors(file, head.weights, [re.compile(p) for p in head.ignored_tensors])
