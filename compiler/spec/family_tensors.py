"""Where the weight files of a family have the tensors of a model, and how they lie there.

File names hold `{i}` where the layer number goes, and `{e}` where tensors that follow one another, such as experts,
have their number. Several ways to hold one tensor are alternatives, tried in order.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from mlxr.compiler.spec.fields import Contradictions, Flag
from mlxr.compiler.spec.record import Record

_TERM = re.compile(r"[a-z_]+|[0-9]{1,9}", re.ASCII)
DIMENSIONS = (
    *("heads", "kv_heads", "head_dim", "half_head", "group", "hidden", "intermediate", "experts", "shared", "layer"),
    *("kv_rank", "nope_dim", "rope_dim", "v_dim", "positions"),
    *("channels", "inner", "shared_state", "steps", "taps"),
    *("key_heads", "value_heads", "values_per_key", "key_dim", "value_dim"),
)
"""What sizes in family files may be made of; `half_head` is head_dim / 2, `group` heads / kv_heads,
`shared` the width of the shared expert, `layer` the number of the layer, `positions` the rows of their table. `v_dim`
are the elements of a value; those before it are of latent attention, else 0; those after it are of recurrent blocks
(`RecurrentBlock.dimensions`)."""

Size = Annotated[int | str, Field(union_mode="left_to_right")]


class Selection(Record):
    """Rows of a file's tensor, in the model's order; see `mlxr.compiler.artifact.weight_plan.Rows`.

    Sizes are numbers, names of DIMENSIONS, and sums of products of these.
    """

    start: Size = 0
    """The first row."""
    shape: tuple[Size, ...]
    """How the model's rows are counted, outermost first."""
    strides: tuple[Size, ...]
    """How far apart rows are in the file along each of these."""
    rope_layout: Literal["half"] | None = None
    """Only where the spec rotates halves: `half` takes apart the rotary pairs that lie side by side in the file."""
    is_part: Flag = False
    """Whether the tensor has other rows too: where the spec does not rotate halves, rows are taken in the file's order,
    and not all of them."""

    @model_validator(mode="after")
    def _check(self) -> "Selection":
        wrong = Contradictions()
        if len(self.shape) != len(self.strides) or not self.shape:
            wrong.add("strides", f"{len(self.shape)} sizes in shape and {len(self.strides)} in strides; one for each")
        for at, sizes in (("start", (self.start,)), ("shape", self.shape), ("strides", self.strides)):
            for size in sizes:
                if unknown := [word for word in _words(size) if not word.isdigit() and word not in DIMENSIONS]:
                    wrong.add(at, f'"{unknown[0]}" is not a dimension', f"dimensions are {', '.join(DIMENSIONS)}")
        wrong.refuse()
        return self


class FileTensor(Record):
    """A tensor of a file, and which numbers of it are meant."""

    tensor: str
    """Its name."""
    stack: Size = 1
    """How many tensors follow one another, for `{e}` in the name."""
    rows: Selection | None = None
    """Which rows, of each; null for all as they are."""
    transposed: bool = False
    """Whether files hold its columns as rows, as `x @ W` has it and not `x @ W.T`: the last two dimensions change
    places before rows are selected. Only of floats, unless `matrix_rows` says of which matrices."""
    matrix_rows: Size | None = None
    """Rows of each of the matrices that lie one below the other in the file, and that are transposed each by itself;
    null for one matrix, or as many as the tensor's other dimensions say."""
    columns: Size | None = None
    """Columns of a row, of which the first ones are meant; null for as many as are needed."""
    beside: str | None = None
    """A piece of a name: only in files that have a tensor with that in its name."""
    beside_wide: Flag = False
    """Whether the last dimension of that tensor must be more than 1."""
    add: Annotated[float, Field(strict=True)] = 0.0
    """Added to every number: 1 for norms that files hold as their distance from 1."""
    unit_rows: Flag = False
    """Whether each row is divided by its length, so that the length is 1; then blocks are decoded."""
    times: str | None = None
    """The number in `model.factors` by which it is multiplied, if the model has one of this name; of floats."""
    negative_exp: Flag = False
    """Whether every number x stands for -e^x."""


def _as_alternatives(value: Any) -> Any:
    items = value if isinstance(value, list | tuple) else [value] if value is not None else []
    return tuple({"tensor": item} if isinstance(item, str) else item for item in items)


Alternatives = Annotated[
    tuple[FileTensor, ...],
    BeforeValidator(_as_alternatives),
    WithJsonSchema(
        {
            "type": "string",
            "description": "a name, or sections of tensor, stack, rows, transposed, add, unit_rows and negative_exp",
        }
    ),
]
"""Several ways in which files hold a tensor; in a family file also one name or one section."""


class FamilyTensor(Record):
    """Where files have one tensor of the model."""

    safetensors: Alternatives = ()
    """In safetensors files."""
    gguf: Alternatives = ()
    """In GGUF files."""

    def in_layer(self, layer: int | None) -> "FamilyTensor":
        """The same with the layer filled in."""

        def filled(entries: tuple[FileTensor, ...]) -> tuple[FileTensor, ...]:
            return tuple(
                entry.model_copy(update={"tensor": entry.tensor.replace("{i}", str(layer))}) for entry in entries
            )

        return FamilyTensor.model_construct(safetensors=filled(self.safetensors), gguf=filled(self.gguf))


def with_joined_projections(tensors: Mapping[str, FamilyTensor | None]) -> dict[str, FamilyTensor | None]:
    """The tensors of a family, with another place in GGUF files for queries, keys and values that have their own there.

    llama.cpp's converter can write them as one tensor, whatever the architecture: `attn_qkv`, with the rows of each in
    the order that they have in `attn_q`, `attn_k` and `attn_v`.
    """
    q, k = "heads * head_dim", "kv_heads * head_dim"
    found = dict(tensors)
    for role, heads, size, start in (
        ("q", "heads", "head_dim", 0),
        ("k", "kv_heads", "head_dim", q),
        ("v", "kv_heads", "v_dim", f"{q} + {k}"),
    ):
        for name, ending in (
            (f"layers.{{i}}.attention.{role}", "weight"),
            (f"layers.{{i}}.attention.{role}_bias", "bias"),
        ):
            entry = found.get(name)
            own = [place for place in entry.gguf if place.tensor == f"blk.{{i}}.attn_{role}.{ending}"] if entry else []
            if entry is None or len(own) < len(entry.gguf):
                continue
            joined = [_in_joined(place, f"blk.{{i}}.attn_qkv.{ending}", heads, size, start) for place in own]
            found[name] = entry.model_copy(update={"gguf": (*own, *joined)})
    return found


def _in_joined(place: FileTensor, tensor: str, heads: str, size: str, start: Size) -> FileTensor:
    whole = Selection(shape=(heads, size), strides=(size, 1))
    rows = (place.rows or whole).model_copy(update={"start": start, "is_part": True})
    return place.model_copy(update={"tensor": tensor, "rows": rows})


def evaluate_size(size: int | str, dimensions: Mapping[str, int]) -> int:
    """The number of a size: a number, or a sum of products of dimensions and numbers."""
    if isinstance(size, int):
        return size
    total = 0
    for term in size.split("+"):
        product = 1
        for factor in term.split("*"):
            word = factor.strip()
            product *= int(word) if word.isdigit() else dimensions[word]
        total += product
    return total


def _words(size: int | str) -> list[str]:
    if isinstance(size, int):
        return []
    words = [word.strip() for word in re.split(r"[+*]", size)]
    return [word if _TERM.fullmatch(word) else f"{word} " for word in words]
