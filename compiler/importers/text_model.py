"""Finds the text model in a config.json: the file's own, or one of several that it describes, beside those of images.

Such a file names the whole under `model_type` and has the text model's keys in `text_config`. A family says which of
these its models may be a part of (`wrappers`); of any other whole nobody knows what its other parts do to the text.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats.file_keys import QUANTISATION, TEXT_SECTION
from mlxr.compiler.importers.facts import find_architecture
from mlxr.compiler.importers.rules import Architecture, architectures_in
from mlxr.compiler.spec.explain import show

_OF_THE_WHOLE = (*QUANTISATION, "tie_word_embeddings", "architectures")
"""Keys that count where the whole has them, whatever the section says."""


class TextModel(NamedTuple):
    """A text model as config.json describes it.

    Attributes:
        source: what error messages call the place of its keys.
        config: its keys.
        architecture: the family, under the name that the file gives it.
        wrapper: the `model_type` of the whole; None: the text model is all that there is.
    """

    source: str
    config: Mapping[str, Any]
    architecture: Architecture
    wrapper: str | None


def find_text_model(source: str, config: Mapping[str, Any]) -> TextModel:
    """The text model of a config.json.

    Args:
        source: what error messages call config.json.
        config: its content.

    Raises:
        SpecError: its architecture is not supported, or not as a part of this whole; the message names it.
    """
    wrapper, inner = config.get("model_type"), config.get(TEXT_SECTION)
    known = architectures_in(wrapper) if isinstance(wrapper, str) and isinstance(inner, dict) else ()
    if not isinstance(wrapper, str) or not isinstance(inner, dict) or not known:
        return TextModel(source, config, find_architecture(source, "model_type", config, "config"), None)
    names = list(dict.fromkeys(architecture.name for architecture in known))
    if inner.get("model_type") is None and len(names) == 1:
        inner = inner | {"model_type": names[0]}
    where = f"{source}: {TEXT_SECTION}"
    architecture = find_architecture(where, "model_type", inner, "config")
    if wrapper not in architecture.rules.wrappers:
        raise SpecError(
            f"{where}: model_type is {show(architecture.name)}; that is not supported as a part of {show(wrapper)}; "
            f"supported in it: {', '.join(names)}"
        )
    inner = {key: value for key, value in inner.items() if key != "architectures"}
    return TextModel(where, inner | {key: config[key] for key in _OF_THE_WHOLE if key in config}, architecture, wrapper)
