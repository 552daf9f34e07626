"""Model families: where a family's files have each tensor, and what they say of a model.

A family is a file of models/families, pure data, which a spec names in `model.tensor_names`. Canonical tensor names
hold `{i}` where the layer number goes. Patterns of ignored tensors are regular expressions that match a whole name. A
family may extend another: it then says only what differs.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from pathlib import Path

from pydantic import Field, model_validator

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.document import read_document
from mlxr.compiler.spec.explain import nearest, validated
from mlxr.compiler.spec.family_tensors import FamilyTensor, with_joined_projections
from mlxr.compiler.spec.fields import Contradictions
from mlxr.compiler.spec.import_rules import NO_RULES, ImportRules
from mlxr.compiler.spec.model import Model
from mlxr.compiler.spec.record import Record

EAGLE_FAMILY = "eagle3"
"""The family of heads that other files bring: its tensors are those of one layer, whatever the model's family is."""
EAGLE_TENSORS = r"eagle\.\d+\..*"
"""Its tensors' names among those of a model."""
_LAYER = re.compile(r"layers\.(0|[1-9][0-9]*)\..+", re.ASCII)


class Family(Record):
    """One family."""

    about: str = ""
    """What it covers, for people."""
    extends: str | None = None
    """The family of which this one is a variant."""
    tensors: dict[str, FamilyTensor | None] = Field(default_factory=dict)
    """Canonical name to names in files; `{i}` is the layer. Null: this family lacks a tensor that the other has."""
    ignored: tuple[str, ...] = ()
    """Patterns of tensors that any file of the family may hold and nothing needs."""
    ignored_when_tied: tuple[str, ...] = ()
    """Patterns of the output projection, which some files hold although it is the embedding table."""
    ignored_when_scaled: tuple[str, ...] = ()
    """Patterns of RoPE frequency factors, which repeat what a spec with RoPE scaling says."""
    config: ImportRules = NO_RULES
    """How config.json says a model of this family."""
    gguf: ImportRules = NO_RULES
    """How GGUF metadata say it."""

    @model_validator(mode="after")
    def _check(self) -> "Family":
        wrong = Contradictions()
        for canonical, places in self.tensors.items():
            for kind, entries in (("safetensors", places.safetensors), ("gguf", places.gguf)) if places else ():
                for entry in entries:
                    of_all_layers = entry.rows is not None and entry.rows.start == "layer"
                    if entry.tensor.count("{i}") != (0 if of_all_layers else canonical.count("{i}")):
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

    def over(self, base: "Family") -> "Family":
        """This family, with all that it leaves out taken from `base`."""
        tensors = {name: places for name, places in (base.tensors | self.tensors).items() if places is not None}
        return Family(
            about=self.about,
            tensors=dict(tensors),
            ignored=(*base.ignored, *self.ignored),
            ignored_when_tied=(*base.ignored_when_tied, *self.ignored_when_tied),
            ignored_when_scaled=(*base.ignored_when_scaled, *self.ignored_when_scaled),
            config=self.config.over(base.config),
            gguf=self.gguf.over(base.gguf),
        )

    def resolve(self, canonical_name: str, layer: int | None = None) -> FamilyTensor:
        """Where files have one tensor.

        Args:
            canonical_name: with its layer (`layers.3.attention.q`), or with `{i}` and `layer` given, or a tensor
                outside the layers (`embedding`).
            layer: the layer that `{i}` stands for.

        Raises:
            SpecError: the family has no such tensor, or `{i}` is left without a layer.
        """
        key = canonical_name
        if (own := layer_of(canonical_name)) is not None:
            key, layer = canonical_name.replace(str(own), "{i}", 1), own
        places = self.tensors.get(key)
        if places is None:
            like = nearest(key, tuple(self.tensors))
            hint = f'; did you mean "{like}"?' if like else ""
            raise SpecError(f'the family has no tensor "{key}"{hint}')
        if "{i}" in key and layer is None:
            raise SpecError(f'every layer has a tensor "{key}"; give the layer')
        return places.in_layer(layer)

    def ignored_for(self, model: Model, *, output: bool = True) -> tuple[str, ...]:
        """Patterns of all tensors that files of this model may hold and the runtime skips.

        Args:
            model: the model.
            output: whether the runtime reads the output projection.
        """
        tied = self.ignored_when_tied if model.tie_embeddings else ()
        rope = model.rope
        has_factors = rope is not None and (rope.scaling.kind != "none" or rope.turned != 1)
        scaled = self.ignored_when_scaled if has_factors else ()
        unread = () if output else self._patterns_of_output()
        return tuple(dict.fromkeys((*self.ignored, *tied, *scaled, *unread)))

    def _patterns_of_output(self) -> Iterator[str]:
        """Patterns of the tensors of the output projection, of its bias, and of their planes if they are quantised."""
        for places in (self.tensors.get("output"), self.tensors.get("output_bias")):
            for entry in (*places.safetensors, *places.gguf) if places is not None else ():
                yield re.escape(entry.tensor.removesuffix(".weight")) + r"(\.(weight|scales|biases))?"


def layer_of(canonical_name: str) -> int | None:
    """The layer of a tensor: 3 for `layers.3.attention.q`; None for a tensor outside the layers."""
    match = _LAYER.fullmatch(canonical_name)
    return int(match[1]) if match else None


def known_families() -> tuple[str, ...]:
    """Names of all families, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


@lru_cache
def load_family(name: str) -> Family:
    """A family, with what it extends filled in.

    Raises:
        SpecError: there is none of that name, or its file is wrong.
    """
    families = known_families()
    if name not in families:
        like = nearest(name, families)
        hint = f'; did you mean "{like}"?' if like else ""
        raise SpecError(f'no family "{name}"; families are {", ".join(families) or "none"}{hint}')
    family = validated(Family, read_document(family_text(name), str(_folder() / f"{name}.yaml"), is_ours=True))
    family = family.over(load_family(family.extends)) if family.extends else family
    return family.model_copy(update={"tensors": with_joined_projections(family.tensors)})


def family_text(name: str) -> str:
    """The text of a family's file; the family is one of `known_families`."""
    return (_folder() / f"{name}.yaml").read_text(encoding="utf-8")


def _folder() -> Path:
    return Path(str(resources.files("mlxr.models"))) / "families"
