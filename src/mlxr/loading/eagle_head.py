"""A head of other files that guesses for a model (EAGLE-3), where `--draft` names one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.compiler.errors import RequestError, SpecError
from mlxr.compiler.formats.file_keys import ARCHITECTURE, CONFIG_BYTES, CONFIG_FILE
from mlxr.compiler.importers.eagle import EagleFiles, eagle_from_config, eagle_from_gguf, is_head
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.compiler.spec.family import EAGLE_FAMILY
from mlxr.compiler.spec.model import ModelSpec
from mlxr.loading.find_model import find_model
from mlxr.loading.options import LoadOptions
from mlxr.runtime.json_file import read_json_object

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlxr.runtime.weights.weight_file import WeightFile


@dataclass(frozen=True)
class EagleHead:
    """A head.

    Attributes:
        files: what its files say.
        file: its tensors, under the names of layer 0.
    """

    files: EagleFiles
    file: "WeightFile"

    def beside(self, model: "WeightFile", spec: ModelSpec) -> "WeightFile":
        """A model's file with the head's tensors."""
        from mlxr.runtime.weights.eagle_tensors import with_eagle  # noqa: PLC0415 (loads MLX)

        return with_eagle(model, self.file, spec.model.num_layers)

    def ids(self, spec: ModelSpec) -> "npt.NDArray[np.int32] | None":
        """Of each token that it may guess, the model's id; None: they are the same."""
        from mlxr.runtime.weights.eagle_tensors import guessed_ids  # noqa: PLC0415 (loads MLX)

        assert spec.model.eagle is not None, "the model has the head"
        return guessed_ids(self.file, spec.model.eagle.vocab_size, spec.model.vocab_size)


def eagle_head(options: LoadOptions, ranks: int = 1) -> EagleHead | None:
    """The head that the options name as the draft; None: they name a model, or nothing.

    Args:
        options: how a model is loaded.
        ranks: over how many it is split.

    Raises:
        RequestError: the model is loaded in a way that goes without a head.
        MlxrError: the head cannot be found, or is not one that is supported.
    """
    if options.draft is None:
        return None
    found = find_model(options.draft)
    if found.kind != "files" or not isinstance(found.model, str):
        return None
    path = Path(found.model)
    config = path / CONFIG_FILE if path.is_dir() else None
    head = _of_gguf(path) if config is None or not config.is_file() else _of_folder(config)
    if head is None:
        return None
    if ranks > 1 or options.changes.parallel is not None:
        raise RequestError(f"{path} is a head, and a model that is split over ranks goes without: leave out the draft")
    if options.changes.output == "hidden":
        raise RequestError(f"{path} is a head, and a model that is loaded for embeddings guesses nothing")
    return head


def with_eagle_spec(spec: ModelSpec, head: EagleHead | None) -> ModelSpec:
    """The spec of a model with the head, or without one of other files.

    Raises:
        SpecError: it is a head for another model.
        RequestError: the model is split over ranks.
    """
    if head is None:
        return spec if spec.model.eagle is None else _without_eagle(spec)
    if spec.parallel is not None:
        raise RequestError(f"{spec.name} is split over ranks, and goes without a head ({head.files.source})")
    return head.files.of(spec)


def _without_eagle(spec: ModelSpec) -> ModelSpec:
    model, own = spec.model.model_copy(update={"eagle": None}), f"layers.{spec.model.num_layers}."
    tensors = {name: format for name, format in spec.weights.tensors.items() if not name.startswith(own)}
    return spec.model_copy(update={"model": model, "weights": spec.weights.model_copy(update={"tensors": tensors})})


def _of_folder(config: Path) -> EagleHead | None:
    keys = read_json_object(config, CONFIG_BYTES, SpecError)
    if not is_head(keys):
        return None
    file = _file(config.parent)
    return EagleHead(eagle_from_config(keys, _facts(file), str(config)), file)


def _of_gguf(path: Path) -> EagleHead | None:
    from mlxr.loading.imported_model import read_factors  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.weights.open_weights import open_weights  # noqa: PLC0415

    opened = open_weights(path)
    if opened.format != "gguf" or opened.metadata.get(ARCHITECTURE) != EAGLE_FAMILY:
        return None
    file = _file(path)
    return EagleHead(eagle_from_gguf(opened.metadata, _facts(file), str(path), read_factors(opened)), file)


def _file(path: Path) -> "WeightFile":
    from mlxr.runtime.weights.eagle_tensors import head_file  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.weights.open_weights import open_weights  # noqa: PLC0415

    return head_file(open_weights(path))


def _facts(file: "WeightFile") -> dict[str, TensorFact]:
    return {name: TensorFact(info.shape, info.type) for name, info in file.tensors.items()}
