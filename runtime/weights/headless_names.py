"""Names of tensors in files that transformers' `AutoModel` or sentence-transformers wrote: a model without its head."""

from collections.abc import Mapping
from dataclasses import replace

from mlxr.runtime.weights.stored_tensor import StoredTensor

_PREFIX = "model."


def with_usual_names(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The tensors under the names that they have in a model with its head: `layers.0...` is `model.layers.0...`."""
    if "embed_tokens.weight" not in tensors or any(name.startswith(_PREFIX) for name in tensors):
        return tensors
    prefixes = {name: "" if name.startswith("lm_head.") else _PREFIX for name in tensors}
    return {prefixes[name] + name: replace(tensor, name=prefixes[name] + name) for name, tensor in tensors.items()}
