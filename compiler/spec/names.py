"""Weight-name maps: what a tensor of MLXR is called in safetensors and GGUF files.

A family is a file of models/families, pure data. Canonical names hold `{i}` where the layer number goes, and so do
the file's names. Patterns of ignored tensors are regular expressions that match a whole name.
"""

import re
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import model_validator

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.document import read_document
from mlxr.compiler.spec.explain import nearest, validated
from mlxr.compiler.spec.fields import Contradictions, Frozen
from mlxr.compiler.spec.model import Model

Transform = Literal["unpermute_rope"]

_LAYER = re.compile(r"layers\.(0|[1-9][0-9]*)\.(.+)", re.ASCII)


class FileNames(NamedTuple):
    """One tensor's name in each kind of file, and how its GGUF form becomes the canonical one."""

    safetensors: str
    gguf: str
    gguf_transform: Transform | None


class TensorName(Frozen):
    """Where one canonical tensor is found."""

    safetensors: str
    """Name in safetensors files."""
    gguf: str
    """Name in GGUF files."""
    gguf_transform: Transform | None = None
    """`unpermute_rope`: rows of each head are stored as interleaved pairs in GGUF and as two halves here."""


class TensorNames(Frozen):
    """The names of one family."""

    tensors: dict[str, TensorName]
    """Canonical name to names in files; `{i}` is the layer."""
    ignored: tuple[str, ...] = ()
    """Patterns of tensors that any file of the family may hold and nothing needs."""
    ignored_when_tied: tuple[str, ...] = ()
    """Patterns of the output projection, which some files hold although it is the embedding table."""
    ignored_when_scaled: tuple[str, ...] = ()
    """Patterns of RoPE frequency factors, which say again what a spec with llama3 scaling says."""

    @model_validator(mode="after")
    def _check(self) -> "TensorNames":
        wrong = Contradictions()
        for canonical, names in self.tensors.items():
            for kind, name in (("safetensors", names.safetensors), ("gguf", names.gguf)):
                if name.count("{i}") != canonical.count("{i}"):
                    wrong.add("tensors", f'{canonical}: the {kind} name "{name}" must hold {{i}} exactly as it does')
        for at in ("ignored", "ignored_when_tied", "ignored_when_scaled"):
            for pattern in getattr(self, at):
                try:
                    re.compile(pattern)
                except re.error as error:
                    wrong.add(at, f'"{pattern}" is not a regular expression: {error}')
        wrong.refuse()
        return self

    def resolve(self, canonical_name: str, layer: int | None = None) -> FileNames:
        """Names of one tensor in files.

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
        if key not in self.tensors:
            like = nearest(key, tuple(self.tensors))
            hint = f'; did you mean "{like}"?' if like else ""
            raise SpecError(f'the weight-name map has no tensor "{key}"{hint}')
        if "{i}" in key and layer is None:
            raise SpecError(f'tensor "{key}" is one of each layer; give its layer')
        names = self.tensors[key]
        number = str(layer)
        return FileNames(
            names.safetensors.replace("{i}", number), names.gguf.replace("{i}", number), names.gguf_transform
        )

    def ignored_for(self, model: Model) -> tuple[str, ...]:
        """Patterns of all tensors that files of this model may hold and the runtime skips."""
        tied = self.ignored_when_tied if model.tie_embeddings else ()
        scaled = self.ignored_when_scaled if model.rope.scaling.kind == "llama3" else ()
        return (*self.ignored, *tied, *scaled)


def known_families() -> tuple[str, ...]:
    """Families that have a weight-name map, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


@lru_cache
def load_tensor_names(family: str) -> TensorNames:
    """The weight-name map of a family.

    Raises:
        SpecError: if there is none of that name, or the file is wrong.
    """
    families = known_families()
    if family not in families:
        like = nearest(family, families)
        hint = f'; did you mean "{like}"?' if like else ""
        raise SpecError(f'no weight-name map for family "{family}"; there is {", ".join(families) or "none"}{hint}')
    path = _folder() / f"{family}.yaml"
    return validated(TensorNames, read_document(path.read_text(encoding="utf-8"), str(path)))


def _folder() -> Path:
    return Path(str(resources.files("mlxr.models"))) / "families"
