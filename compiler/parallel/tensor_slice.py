"""Which rows and columns of each tensor of a model a rank has, by the tensor's name."""

from dataclasses import dataclass

from mlxr.compiler.errors import PlanError
from mlxr.compiler.spec.family import layer_of
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.share import Range, Share

_VOCABULARY = ("embedding", "output")
_SUMMED_BIASES = ("attention.o_bias", "mlp.down_bias")
_WHOLE = (
    "attention.norm",
    "attention.norm_bias",
    "attention.post_norm",
    "attention.post_norm_bias",
    "mlp.norm",
    "mlp.norm_bias",
    "mlp.post_norm",
    "mlp.post_norm_bias",
    "mlp.router",
    "mlp.router_bias",
    "mlp.selection_bias",
    "mlp.shared.router",
    "final_norm",
    "final_norm_bias",
)


@dataclass(frozen=True)
class TensorSlice:
    """A part of a tensor: rows [first, last) of a matrix or elements of a vector, and columns; None: all."""

    rows: Range | None = None
    columns: Range | None = None


WHOLE = TensorSlice()


def slice_of(spec: ModelSpec, share: Share, name: str) -> TensorSlice | None:
    """The part of a tensor that a rank has; None if it has nothing of it.

    Raises:
        PlanError: nobody has said how such a tensor is divided.
    """
    layer = layer_of(name)
    if layer is not None and not share.layers[0] <= layer < share.layers[1]:
        return None
    if layer is None:
        of_first, of_last = share.is_first and name == "embedding", share.is_last and name != "embedding"
        tied = share.is_last and name == "embedding" and spec.model.tie_embeddings and spec.output == "logits"
        if not (of_first or of_last or tied):
            return None
    if share.split.tensor == 1:
        return WHOLE
    role = name.split(".", 2)[2] if layer is not None else name
    if role in _VOCABULARY:
        return TensorSlice(share.vocabulary)
    if role in _WHOLE:
        return WHOLE
    if role.startswith("attention."):
        assert layer is not None, "attention is in layers"
        return _of_attention(spec, share, layer, role.removeprefix("attention."))
    if role in _SUMMED_BIASES:
        return WHOLE if share.tensor_rank == 0 else None
    assert layer is not None, "all others are in layers"
    return _of_mlp(spec, share, layer, role)


def _of_attention(spec: ModelSpec, share: Share, layer: int, role: str) -> TensorSlice | None:
    head_dim = spec.model.attention.head_dim
    heads = {"q": share.heads, "k": share.kv_heads, "v": share.kv_heads}
    first, _, rest = role.partition("_")
    if role == "o":
        return TensorSlice(columns=_times(share.heads, head_dim))
    if role == "o_bias":
        return WHOLE if share.tensor_rank == 0 else None
    if role == "sinks":
        return TensorSlice(share.heads)
    if first in heads and rest in ("", "bias"):
        return TensorSlice(_times(heads[first], head_dim))
    if first in heads and rest in ("norm", "norm_bias"):
        norm = spec.model.layer(layer).attention.qk_norm
        assert norm is not None, "the tensor is that of a norm"
        return WHOLE if norm.scope == "head" else TensorSlice(_times(heads[first], head_dim))
    raise PlanError(f"attention.{role} has no rule by which ranks divide it")


def _of_mlp(spec: ModelSpec, share: Share, layer: int, role: str) -> TensorSlice | None:
    mlp, hidden = spec.model.layer(layer).mlp, spec.model.hidden_size
    role = role.removeprefix("mlp.")
    part, _, last = role.rpartition(".")
    last = last.removesuffix("_bias")
    if last not in ("gate", "up", "down") or part not in ("", "shared", "experts"):
        raise PlanError(f"mlp.{role} has no rule by which ranks divide it")
    if part == "experts":
        assert mlp.experts is not None, "the tensor is one of experts"
        return TensorSlice(
            _times(share.experts[mlp.experts.count], hidden if last == "down" else mlp.intermediate_size)
        )
    shared = mlp.experts.shared if mlp.experts is not None else None
    width = shared.intermediate_size if shared is not None else mlp.intermediate_size
    columns = share.columns[width]
    return TensorSlice(columns=columns) if last == "down" else TensorSlice(columns)


def _times(numbers: Range, factor: int) -> Range:
    return numbers[0] * factor, numbers[1] * factor
