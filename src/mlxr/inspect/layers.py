"""Names of layers: which layer a name belongs to, and layers that are alike.

Ops and values of layer N are named `layers.N.…`; the buffer `layer.N` tells a kernel its layer.
"""

import re
from collections.abc import Hashable, Mapping, Sequence

_IN_LAYER = re.compile(r"layers\.(\d+)\.")
_LAYER_BUFFER = re.compile(r"layer\.\d+")


def layer_of(name: str) -> int | None:
    """The layer that an op or a value belongs to: 3 for `layers.3.mlp.out`."""
    match = _IN_LAYER.match(name)
    return int(match[1]) if match else None


def without_layer(name: str) -> str:
    """A name without its layer: `mlp.out` for `layers.3.mlp.out`."""
    return _IN_LAYER.sub("", name, count=1)


def in_layer(name: str, layer: int) -> str:
    """The same name in another layer."""
    return _IN_LAYER.sub(f"layers.{layer}.", name, count=1)


def is_layer_buffer(name: str) -> bool:
    """Whether a buffer tells a kernel its layer."""
    return _LAYER_BUFFER.fullmatch(name) is not None


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
