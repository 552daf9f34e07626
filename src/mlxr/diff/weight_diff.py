"""Tensors of the model whose shape or format differs; layers in which the same differs are reported together."""

from mlxr.compiler.artifact import Artifact, TensorSource, WeightPlan
from mlxr.compiler.formats.weight_layout import layout_of
from mlxr.compiler.spec.record import Record
from mlxr.diff.field_changes import Change, FieldChange, Json, field_changes
from mlxr.inspect.layers import without_layer


class WeightChange(Record):
    """A tensor that differs, in one layer or in several.

    Attributes:
        tensor: its canonical name, without its layer.
        layers: the layers in which it differs in this way; empty for a tensor outside the layers.
        bytes_a, bytes_b: its bytes in each of these layers; null where it is missing.
        fields: its shape and format, as far as they differ.
    """

    change: Change
    tensor: str
    layers: tuple[int, ...] = ()
    bytes_a: int | None = None
    bytes_b: int | None = None
    fields: tuple[FieldChange, ...] = ()


def weight_diff(a: Artifact, b: Artifact) -> tuple[WeightChange, ...]:
    """The tensors that differ, in A's order, then those that only B has."""
    of_a, of_b = _tensors(a), _tensors(b)
    layers: dict[str, list[int]] = {}
    for name in {**of_a, **of_b}:
        ours, theirs = of_a.get(name), of_b.get(name)
        if ours == theirs:
            continue
        layer = _layer(name)
        change = WeightChange(
            change="added" if ours is None else "removed" if theirs is None else "changed",
            tensor=without_layer(name, layer),
            bytes_a=ours and ours[1],
            bytes_b=theirs and theirs[1],
            fields=field_changes(ours[0], theirs[0]) if ours and theirs else (),
        )
        layers.setdefault(change.model_dump_json(), []).extend([] if layer is None else [layer])
    return tuple(
        WeightChange.model_validate_json(text).model_copy(update={"layers": tuple(of)}) for text, of in layers.items()
    )


def _tensors(artifact: Artifact) -> dict[str, tuple[dict[str, Json], int]]:
    """Shape, format and bytes of each tensor, by its name."""
    return {
        part.name: ({"shape": list(part.shape), "format": str(part.format)}, _size_bytes(weight, part))
        for weight in artifact.plan.weights
        for part in weight.parts
    }


def _size_bytes(weight: WeightPlan, part: TensorSource) -> int:
    columns = weight.shape[1] if len(weight.shape) == 2 else 1
    return layout_of([(part.format, part.shape[0])], columns).size_bytes


def _layer(name: str) -> int | None:
    """The layer of a tensor: 3 for `layers.3.mlp.down`."""
    first, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if first == "layers" and number.isdecimal() else None
