"""What is compared before a model is compiled: a file whose sizes lie is refused at once, however large they are."""

import re
from pathlib import Path

from mlxr.compiler.errors import WeightsError
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.source_weights import source_weights
from mlxr.runtime.weights.check_tensors import check_tensors
from mlxr.runtime.weights.open_weights import open_weights


def check_tensors_first(spec: ModelSpec, weights: Path) -> None:
    """Refuses a spec whose tensors are not, by names and shapes, those in the header of its weights.

    Args:
        spec: as the weights' own files describe it.
        weights: a weight file or a folder.

    Raises:
        WeightsError: they are not.
        MlxrError: the spec cannot be compiled.
    """
    file = open_weights(weights)
    if spec.model.num_layers > len(file.tensors):
        raise WeightsError(
            f"{file.path}: the model has {spec.model.num_layers} layers by what its files say, and there are only "
            f"{len(file.tensors)} tensors: fetch the file anew"
        )
    model = source_weights(spec)
    check_tensors(file, model.weights, [re.compile(pattern) for pattern in model.ignored_tensors])
