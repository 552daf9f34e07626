"""Families: what tensors are called in files and how they lie there, and what files say of a model.

A family is a file of models/families, pure data. Canonical names hold `{i}` where the layer number goes, and so do the
file's names; `{e}` counts tensors that follow one another, such as experts. Patterns of ignored tensors are regular
expressions that match a whole name. A family may extend another: it then says only what differs.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.document import read_document
from mlxr.compiler.spec.explain import nearest, validated
from mlxr.compiler.spec.fields import Contradictions, Frozen
from mlxr.compiler.spec.mapping import NOTHING_SAID, Mapped
from mlxr.compiler.spec.model import Model

FileKind = Literal["safetensors", "gguf"]

_LAYER = re.compile(r"layers\.(0|[1-9][0-9]*)\.(.+)", re.ASCII)
_TERM = re.compile(r"[a-z_]+|[0-9]{1,9}", re.ASCII)
DIMENSIONS = ("heads", "kv_heads", "head_dim", "half_head", "group", "hidden", "intermediate", "experts")
"""What sizes in family files may be made of; `half_head` is head_dim / 2, `group` heads / kv_heads."""

Size = Annotated[int | str, Field(union_mode="left_to_right")]


class Selection(Frozen):
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


class FileTensor(Frozen):
    """A tensor of a file, and which numbers of it are meant."""

    tensor: str
    """Its name."""
    stack: Size = 1
    """How many tensors follow one another, for `{e}` in the name."""
    rows: Selection | None = None
    """Which rows, of each; null for all as they are."""
    add: Annotated[float, Field(strict=True)] = 0.0
    """Added to every number: 1 for norms that files hold as their distance from 1."""


def _as_alternatives(value: Any) -> Any:
    items = value if isinstance(value, list | tuple) else [value] if value is not None else []
    return tuple({"tensor": item} if isinstance(item, str) else item for item in items)


Alternatives = Annotated[
    tuple[FileTensor, ...],
    BeforeValidator(_as_alternatives),
    WithJsonSchema({"type": "string", "description": "a name, or sections of tensor, stack, rows and add"}),
]
"""Several ways in which files hold a tensor; in a family file also one name or one section."""


class TensorName(Frozen):
    """Where one canonical tensor is found."""

    safetensors: Alternatives = ()
    """In safetensors files."""
    gguf: Alternatives = ()
    """In GGUF files."""


class FileNames(NamedTuple):
    """Where one tensor is found in each kind of file, with its layer filled in."""

    safetensors: tuple[FileTensor, ...]
    gguf: tuple[FileTensor, ...]


class TensorNames(Frozen):
    """One family."""

    about: str = ""
    """What it covers, for people."""
    extends: str | None = None
    """The family of which this one is a variant."""
    tensors: dict[str, TensorName | None] = Field(default_factory=dict)
    """Canonical name to names in files; `{i}` is the layer. Null: this family has none, though the other has."""
    ignored: tuple[str, ...] = ()
    """Patterns of tensors that any file of the family may hold and nothing needs."""
    ignored_when_tied: tuple[str, ...] = ()
    """Patterns of the output projection, which some files hold although it is the embedding table."""
    ignored_when_scaled: tuple[str, ...] = ()
    """Patterns of RoPE frequency factors, which say again what a spec with RoPE scaling says."""
    config: Mapped = NOTHING_SAID
    """What config.json says of a model of this family."""
    gguf: Mapped = NOTHING_SAID
    """What GGUF metadata say of it."""

    @model_validator(mode="after")
    def _check(self) -> "TensorNames":
        wrong = Contradictions()
        for canonical, names in self.tensors.items():
            for kind, found in (("safetensors", names.safetensors), ("gguf", names.gguf)) if names else ():
                for entry in found:
                    if entry.tensor.count("{i}") != canonical.count("{i}"):
                        wrong.add(
                            "tensors",
                            f'{canonical}: the {kind} name "{entry.tensor}" must hold {{i}} exactly as it does',
                        )
        for at in ("ignored", "ignored_when_tied", "ignored_when_scaled"):
            for pattern in getattr(self, at):
                try:
                    re.compile(pattern)
                except re.error as error:
                    wrong.add(at, f'"{pattern}" is not a regular expression: {error}')
        wrong.refuse()
        return self

    def over(self, base: "TensorNames") -> "TensorNames":
        """This family with all that it leaves out as `base` has it."""
        both = (base.tensors | self.tensors).items()
        tensors: dict[str, TensorName | None] = {name: found for name, found in both if found is not None}
        return TensorNames(
            about=self.about,
            tensors=tensors,
            ignored=(*base.ignored, *self.ignored),
            ignored_when_tied=(*base.ignored_when_tied, *self.ignored_when_tied),
            ignored_when_scaled=(*base.ignored_when_scaled, *self.ignored_when_scaled),
            config=self.config.over(base.config),
            gguf=self.gguf.over(base.gguf),
        )

    def resolve(self, canonical_name: str, layer: int | None = None) -> FileNames:
        """Where files have one tensor.

        Args:
            canonical_name: With its layer (`layers.3.attention.q`), or with `{i}` and `layer` given, or a tensor
                outside the layers (`embedding`).
            layer: The layer that `{i}` stands for.

        Raises:
            SpecError: if the family has no such tensor, or `{i}` is left without a layer.
        """
        key = canonical_name
        if match := _LAYER.fullmatch(canonical_name):
            key, layer = f"layers.{{i}}.{match[2]}", int(match[1])
        names = self.tensors.get(key)
        if names is None:
            like = nearest(key, tuple(self.tensors))
            hint = f'; did you mean "{like}"?' if like else ""
            raise SpecError(f'the weight-name map has no tensor "{key}"{hint}')
        if "{i}" in key and layer is None:
            raise SpecError(f'tensor "{key}" is one of each layer; give its layer')
        number = str(layer)

        def filled(found: tuple[FileTensor, ...]) -> tuple[FileTensor, ...]:
            return tuple(entry.model_copy(update={"tensor": entry.tensor.replace("{i}", number)}) for entry in found)

        return FileNames(filled(names.safetensors), filled(names.gguf))

    def ignored_for(self, model: Model) -> tuple[str, ...]:
        """Patterns of all tensors that files of this model may hold and the runtime skips."""
        tied = self.ignored_when_tied if model.tie_embeddings else ()
        scaled = self.ignored_when_scaled if model.rope is not None and model.rope.scaling.kind != "none" else ()
        return (*self.ignored, *tied, *scaled)


def evaluate(size: int | str, dimensions: Mapping[str, int]) -> int:
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


def known_families() -> tuple[str, ...]:
    """Families that have a weight-name map, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


@lru_cache
def load_tensor_names(family: str) -> TensorNames:
    """A family, with what it extends filled in.

    Raises:
        SpecError: if there is none of that name, or the file is wrong.
    """
    families = known_families()
    if family not in families:
        like = nearest(family, families)
        hint = f'; did you mean "{like}"?' if like else ""
        raise SpecError(f'no weight-name map for family "{family}"; families are {", ".join(families) or "none"}{hint}')
    text, source = family_text(family), str(_folder() / f"{family}.yaml")
    found = validated(TensorNames, read_document(text, source))
    return found.over(load_tensor_names(found.extends)) if found.extends else found


def family_text(family: str) -> str:
    """The text of a family's file, which is one of `known_families`."""
    return (_folder() / f"{family}.yaml").read_text(encoding="utf-8")


def _folder() -> Path:
    return Path(str(resources.files("mlxr.models"))) / "families"
