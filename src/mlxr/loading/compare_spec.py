"""Compares a spec with what the files of its weights say about the model.

Tensor shapes do not show another activation, window or norm: such a model would load and write nonsense. So the files
are imported as if they were MODEL, and every property that the importer finds must be the spec's. What a user may
choose is not compared: types, formats, the cache, and a context up to the model's own.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxr.compiler.build.rope import rope_frequencies, rope_scale
from mlxr.compiler.errors import ContextError, SpecError, WeightsError
from mlxr.compiler.formats.file_keys import ARCHITECTURE
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.spec.explain import show
from mlxr.compiler.spec.model import LayerType, Model, ModelSpec
from mlxr.loading.imported_model import import_weights
from mlxr.runtime.weights.check_tensors import check_tensors
from mlxr.runtime.weights.eagle_tensors import with_eagle
from mlxr.runtime.weights.mapped_weights import same_numbers
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.weight_file import WeightFile

_OF_MODEL = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "norm",
    "token_types",
    "learned_positions",
    "embedding_norm",
    "layer_embeddings",
    "layer_scale",
    "parallel_blocks",
    "parallel_norms",
    "tie_embeddings",
    "output_bias",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "logit_softcap",
    "factors",
)
_GGUF_OUTPUT, _GGUF_EMBEDDING = "output.weight", "token_embd.weight"
_NOTHING = object()


def check_spec(
    spec: ModelSpec, weights: Path, accepted_keys: tuple[str, ...] = (), force_context: bool = False
) -> None:
    """Refuses a spec that contradicts what the weights' own files say. What they do not say is not checked.

    Args:
        spec: the spec.
        weights: a weight file or a folder.
        accepted_keys: keys of the files to accept, as in `ImportOptions`.
        force_context: as in `ImportOptions`.

    Raises:
        ContextError: the spec's context is longer than the model's own.
        WeightsError: the files contradict the spec (the message names every difference), or they are corrupt.
    """
    file = open_weights(weights)
    options = ImportOptions(
        spec.model.context, accepted_keys=accepted_keys, force_context=force_context, output=spec.output
    )
    too_long = None
    try:
        try:
            imported = import_weights(file, spec.name, options)
        except ContextError as error:  # if it is another model, its other properties matter more
            too_long = error
            imported = import_weights(file, spec.name, replace(options, force_context=True))
    except SpecError:
        if accepted_keys:
            raise
        return  # a model that cannot be imported may still have a spec: `check_metadata` compares its numbers
    if imported is None:
        return
    not_in_file = _not_in_gguf(file, imported.model) if file.format == "gguf" else ()
    if wrong := [phrase for phrase in differences(spec.model, imported.model) if not phrase.startswith(not_in_file)]:
        raise WeightsError(
            f"{file.path}: these are weights of another model, or the spec is wrong: {'; '.join(wrong)}. Correct the "
            "spec (mlxr import writes the one that goes with these weights) and compile it again, or name the weights "
            "that it was written for"
        )
    if too_long is not None:
        raise too_long


def _not_in_gguf(file: WeightFile, imported: Model) -> tuple[str, ...]:
    """The first words of differences that do not count, since the GGUF file does not state these properties."""
    # Mistral's files call themselves llama and leave its window out; other families' say which layers have one.
    windowless = all(attention.sliding_window is None for attention in imported.attentions)
    window = file.metadata.get(ARCHITECTURE) == "llama" and windowless
    # Some files hold the output projection although it is the embedding table.
    has_both = {_GGUF_OUTPUT, _GGUF_EMBEDDING} <= file.tensors.keys()
    tied = has_both and same_numbers(file, _GGUF_OUTPUT, _GGUF_EMBEDDING)
    # llama.cpp's converter has multiplied the weights by their factors.
    phrases = {"model.attention.sliding_window is null": window, "model.tie_embeddings ": tied, "model.factors": True}
    return tuple(phrase for phrase, holds in phrases.items() if holds)


def differences(spec: Model, imported: Model) -> Iterator[str]:
    """The differences between a spec's model and an imported one, each as a phrase with its path and both values."""
    ours, theirs = ({name: getattr(model, name) for name in _OF_MODEL} for model in (spec, imported))
    for path, our, their in _unlike(ours, theirs, "model"):
        yield f"{path} is {_shown(their)}, the spec says {_shown(our)}"
    places: dict[tuple[str, str, str], list[int]] = {}
    for index in range(min(spec.num_layers, imported.num_layers)):
        ours, theirs = (_properties(model.layer(index), spec.context) for model in (spec, imported))
        for path, our, their in _unlike(ours, theirs, "model"):
            places.setdefault((path, _shown(our), _shown(their)), []).append(index)
    for (path, our, their), layers in places.items():
        where = "" if len(layers) == spec.num_layers else f" in layer {layers[0]}"
        yield f"{path} is {their}{where}, the spec says {our}"


def _properties(layer: LayerType, context: int) -> dict[str, Any]:
    """A layer's properties; those that a spec may leave out have the values that they then take."""
    properties = layer.model_dump(mode="json")
    attention, rope = properties["attention"], layer.rope
    if layer.attention is not None:
        if attention["scale"] is None:
            attention["scale"] = layer.attention.head_dim**-0.5
        attention["v_dim"], attention["value_scale"] = layer.attention.result_dim, attention["value_scale"] or 1.0
        if attention["sliding_window"] is not None and attention["sliding_window"] >= context:
            attention["sliding_window"] = None
    if rope is not None and layer.attention is not None:
        # The same angles can be said in several ways: as a scaling, or as the frequencies that it gives.
        angles = rope_frequencies(rope, layer.rotary_dim, context)
        properties["rope"] = _Rope(properties["rope"], (*angles, rope_scale(rope, context), rope.layout == "half"))
    return properties


class _Rope(dict[str, Any]):
    """A `rope` section; it equals another one that gives the same angles."""

    def __init__(self, section: dict[str, Any], angles: tuple[float, ...]) -> None:
        super().__init__(section)
        self.angles = angles


def _unlike(ours: Any, theirs: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Paths at which two properties differ, with both values."""
    if isinstance(ours, _Rope) and isinstance(theirs, _Rope) and _alike(ours.angles, theirs.angles):
        return
    first, second = _section(ours), _section(theirs)
    if first is not None and second is not None:
        for key in {**first, **second}:
            yield from _unlike(first.get(key, _NOTHING), second.get(key, _NOTHING), f"{path}.{key}")
    elif not _alike(ours, theirs):
        yield path, ours, theirs


def _section(value: Any) -> dict[str, Any] | None:
    if isinstance(value, dict):
        return value
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else None


def _alike(first: Any, second: Any) -> bool:
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_alike, first, second))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (first, second))
    return math.isclose(first, second, rel_tol=1e-5) if numbers else bool(first == second)


def _shown(value: Any) -> str:
    if value is _NOTHING:
        return "not there"
    return show(value) if isinstance(value, str) or _section(value) is None else "a section"


def check_tensors_first(spec: ModelSpec, weights: Path, head: WeightFile | None = None) -> None:
    """Refuses a spec whose tensors are not, by names and shapes, those in the header of its weights.

    Before it is compiled: a file that lies about its sizes is refused at once, however large they are.

    Args:
        spec: as the weights' own files describe it.
        weights: a weight file or a folder.
        head: the tensors of a head of other files, by `head_file`; None: there is none.

    Raises:
        WeightsError: they are not.
        MlxrError: the spec cannot be compiled.
    """
    from mlxr.compiler.targets.source_graph import source_weights  # noqa: PLC0415 (not for what is cached)

    file = open_weights(weights)
    if spec.model.num_layers > len(file.tensors):
        raise WeightsError(
            f"{file.path}: the model has {spec.model.num_layers} layers by what its files say, and there are only "
            f"{len(file.tensors)} tensors: fetch the file anew"
        )
    if head is not None:
        file = with_eagle(file, head, spec.model.num_layers)
    model = source_weights(spec)
    check_tensors(file, model.weights, [re.compile(pattern) for pattern in model.ignored_tensors])
