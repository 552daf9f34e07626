"""Recipes for the tensors of a model: the family's tensor names and row selections, with this model's sizes."""

from collections.abc import Mapping, Sequence
from math import prod

from mlxr.compiler.artifact.weight_plan import Columns, Recipe, Rows
from mlxr.compiler.spec.eagle import Eagle
from mlxr.compiler.spec.family import EAGLE_FAMILY, layer_of, load_family
from mlxr.compiler.spec.family_tensors import DIMENSIONS, FileTensor, Selection, evaluate_size
from mlxr.compiler.spec.model import Attention, LayerType, Mlp, Model


def recipes(model: Model, name: str) -> tuple[tuple[Recipe, ...], tuple[Recipe, ...]]:
    """The recipes of a tensor for safetensors files and for GGUF files.

    Args:
        model: the model.
        name: the tensor's canonical name, with its layer.

    Raises:
        SpecError: the family has no such tensor.
    """
    layer = layer_of(name)
    if model.eagle is not None and layer == model.num_layers:
        return (_of_eagle(model.eagle, name),) * 2
    places = load_family(model.tensor_names).resolve(name)
    own = model.as_layer if layer is None else model.layer(layer)
    numbers = dict.fromkeys(DIMENSIONS, 0) | dimensions(model, own) | {"layer": layer or 0}
    layouts = {rope.layout for rope in (model.rope, *(layer.rope for layer in model.layer_types.values())) if rope}
    # Files store the rows of layers without rotation in the same order as those of the other layers.
    layout = layouts.pop() if len(layouts) == 1 else None
    factors = model.factors
    return _recipes(places.safetensors, numbers, layout, factors), _recipes(places.gguf, numbers, layout, factors)


def _of_eagle(head: Eagle, name: str) -> tuple[Recipe, ...]:
    """The recipes of a tensor of a head, whose file may be of another kind than the model's."""
    places = load_family(EAGLE_FAMILY).resolve(name)
    numbers = dict.fromkeys(DIMENSIONS, 0) | {"hidden": head.hidden_size} | _of_attention(head.attention)
    layout = None if head.rope is None else head.rope.layout
    return _recipes((*places.safetensors, *places.gguf), numbers, layout, {})


def dimensions(model: Model, layer: LayerType) -> dict[str, int]:
    """The numbers of `mlxr.compiler.spec.family_tensors.DIMENSIONS` in a layer; of blocks that it lacks, none."""
    numbers = {"hidden": model.hidden_size, "positions": model.learned_positions or 0}
    numbers |= {} if layer.attention is None else _of_attention(layer.attention)
    numbers |= {} if layer.mlp is None else _of_mlp(layer.mlp)
    return numbers | ({} if layer.recurrent is None else layer.recurrent.dimensions)


def _of_attention(attention: Attention) -> dict[str, int]:
    latent = attention.latent
    return {
        "heads": attention.num_heads,
        "kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "half_head": attention.head_dim // 2,
        "group": attention.num_heads // attention.num_kv_heads,
        "kv_rank": latent.kv_rank if latent is not None else 0,
        "nope_dim": latent.nope_dim if latent is not None else 0,
        "rope_dim": latent.rope_dim if latent is not None else 0,
        "v_dim": attention.result_dim,
    }


def _of_mlp(mlp: Mlp) -> dict[str, int]:
    experts, shared = mlp.experts, mlp.experts.shared if mlp.experts is not None else None
    return {
        "intermediate": mlp.intermediate_size,
        "experts": experts.count if experts is not None else 0,
        "shared": shared.intermediate_size if shared is not None else 0,
    }


def _recipes(
    entries: Sequence[FileTensor], numbers: dict[str, int], layout: str | None, factors: Mapping[str, float]
) -> tuple[Recipe, ...]:
    return tuple(
        Recipe(
            entry.tensor,
            evaluate_size(entry.stack, numbers),
            _rows(entry.rows, numbers, layout),
            entry.add,
            columns=None if entry.columns is None else Columns(0, evaluate_size(entry.columns, numbers)),
            is_transposed=entry.transposed,
            beside=entry.beside,
            beside_wide=entry.beside_wide,
            matrix_rows=None if entry.matrix_rows is None else evaluate_size(entry.matrix_rows, numbers),
            unit_rows=entry.unit_rows,
            negative_exp=entry.negative_exp,
            times=1.0 if entry.times is None else factors.get(entry.times, 1.0),
        )
        for entry in entries
    )


def _rows(selection: Selection | None, numbers: dict[str, int], layout: str | None) -> Rows | None:
    if selection is None:
        return None
    in_order = selection.rope_layout not in (None, layout)
    if in_order and not selection.is_part:
        return None

    def numbered(sizes: Sequence[int | str]) -> tuple[int, ...]:
        return tuple(evaluate_size(size, numbers) for size in sizes)

    start, shape = evaluate_size(selection.start, numbers), numbered(selection.shape)
    return Rows(start, (prod(shape),), (1,)) if in_order else Rows(start, shape, numbered(selection.strides))
