"""Names within a layer, and layers that are alike."""

import re
from collections.abc import Hashable, Mapping, Sequence

from mlxr.compiler.ir.tensor import layer_prefix


def without_layer(name: str, layer: int | None) -> str:
    """The name of an op or a value of a layer without that: `mlp.out` for `layers.3.mlp.out`.

    Names of another layer, and of none, stay as they are.
    """
    return name if layer is None else name.removeprefix(layer_prefix(layer))


def model_layer(name: str, layer: int | None) -> int | None:
    """The layer of an op by its name; a rank counts its own layers from 0, but its ops have the model's names."""
    if layer is None or (match := re.match(r"layers\.(\d+)\.", name)) is None:
        return layer
    return int(match[1])


def is_in_layer(name: str, layer: int | None) -> bool:
    """Whether a name is one of that layer's."""
    return layer is not None and name.startswith(layer_prefix(layer))


def alike(signatures: Mapping[int, Hashable]) -> list[tuple[int, ...]]:
    """Layers of equal signature, together; groups in the order of their first layer."""
    groups: dict[Hashable, list[int]] = {}
    for layer in sorted(signatures):
        groups.setdefault(signatures[layer], []).append(layer)
    return [tuple(group) for group in groups.values()]


def ranges(layers: Sequence[int]) -> str:
    """Sorted layers for people: `0-5`, or `0, 2, 4-6`."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
