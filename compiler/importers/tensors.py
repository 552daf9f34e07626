"""What the list of a model's tensors says: their formats, which of them there are, and whether embeddings are tied."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.family import load_family
from mlxr.compiler.spec.family_tensors import FileKind, FileTensor

_FORMATS = (
    {held.gguf: held for held in WeightFormat if held.gguf is not None}
    | {str(held): held for held in WeightFormat if held.gguf is None}
    | {"F64": WeightFormat.F32}
)
_CLASSES = ("embedding", "attention", "mlp", "output")
_VECTORS = ("_bias", "norm", "sinks")


class TensorFact(NamedTuple):
    """A tensor as a file's header has it."""

    shape: tuple[int, ...]
    """Outermost dimension first."""
    type: str
    """As in files: F32, BF16, Q4_K; or the name of a format that lies in several tensors."""


class _Place(NamedTuple):
    """A tensor's place in the model: `layers.3.attention.q` is role `attention.q` of layer 3."""

    role: str
    layer: int | None

    @property
    def canonical(self) -> str:
        return self.role if self.layer is None else f"layers.{self.layer}.{self.role}"

    @property
    def tensor_class(self) -> str:
        return self.role.partition(".")[0]

    @property
    def is_matrix(self) -> bool:
        return not self.role.endswith(_VECTORS)


class Tensors:
    """The tensors of a file by their places in the model."""

    def __init__(
        self, source: str, tensors: Mapping[str, TensorFact], family: str, kind: FileKind, num_layers: int
    ) -> None:
        """Finds each place's tensor. Those without a place are left to the check of the weights when they are loaded.

        Args:
            source: what error messages call the file.
            tensors: of the file.
            family: whose they are.
            kind: of the file.
            num_layers: layers to look for; more than there can be are taken as none.
        """
        self._source, self._tensors = source, tensors
        self._facts: dict[_Place, TensorFact] = {}
        self._names: dict[_Place, str] = {}
        # A layer has a tensor at least, so a count beyond the tensors is no reason to look for long.
        layers = range(min(num_layers, len(tensors)))
        for name, entry in load_family(family).tensors.items():
            if entry is None:
                continue
            in_layer = "{i}" in name
            for layer in layers if in_layer else (None,):
                if (found := self._first(getattr(entry, kind), layer)) is not None:
                    place = _Place(name.removeprefix("layers.{i}."), layer)
                    self._names[place], self._facts[place] = found
        self._roles = {place.role for place in self._facts}

    def _first(self, options: tuple[FileTensor, ...], layer: int | None) -> tuple[str, TensorFact] | None:
        for option in options:
            name = option.tensor.replace("{i}", str(layer)).replace("{e}", "0")
            if (fact := self._tensors.get(name)) is not None:
                return name, fact
        return None

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table.

        Raises:
            SpecError: there is none.
        """
        table = self._facts.get(_Place("embedding", None))
        if table is None or len(table.shape) != 2:
            raise SpecError(f"{self._source}: holds no embedding table, so it is not a whole language model")
        return table.shape[0]

    def has(self, role: str) -> bool:
        """Whether there is a tensor of this role (`output`, `attention.q_bias`), in any layer."""
        return role in self._roles

    def name(self, role: str) -> str | None:
        """What the file calls the tensor of a role outside the layers (`output`); None where it has none."""
        return self._names.get(_Place(role, None))

    def formats(self, tied: bool) -> dict[str, Any]:
        """The `weights` section of a spec: the most frequent format of each class, and every exception.

        Args:
            tied: whether the embedding table is the output projection too; another one in the file is then unused.

        Raises:
            SpecError: a matrix has a type that cannot be held.
        """
        held = {place: self._format(place, self._facts[place]) for place in self._matrices(tied)}
        sizes: dict[str, Counter[WeightFormat]] = {name: Counter() for name in _CLASSES}
        for place, held_as in held.items():
            size = 1
            for dimension in self._facts[place].shape:
                size *= dimension
            sizes[place.tensor_class][held_as] += size
        layers = sizes["attention"] + sizes["mlp"]
        default = _most(layers) or _most(sizes["embedding"]) or WeightFormat.F32
        classes = {name: _most(sizes[name]) or default for name in _CLASSES}
        if tied:
            classes["output"] = classes["embedding"]
        section: dict[str, Any] = {"default": str(default)}
        section |= {name: str(held_as) for name, held_as in classes.items() if held_as != default}
        if exceptions := _exceptions(held, classes):
            section["tensors"] = exceptions
        return section

    def _matrices(self, tied: bool) -> Iterator[_Place]:
        for place, fact in self._facts.items():
            if place.is_matrix and len(fact.shape) > 1 and not (tied and place.role == "output"):
                yield place

    def _format(self, place: _Place, fact: TensorFact) -> WeightFormat:
        if fact.type not in _FORMATS:
            known = ", ".join(name for name in _FORMATS if not name.startswith("affine"))
            raise SpecError(
                f"{self._source}: {place.canonical} is of type {fact.type[:40]!a}, which is not supported; "
                f"supported: {known}, and MLX's affine"
            )
        return _FORMATS[fact.type]


def _most(sizes: Counter[WeightFormat]) -> WeightFormat | None:
    """The format of the most elements; of equals, the one that is named first in WeightFormat."""
    return max(sizes, key=lambda held: (sizes[held], -list(WeightFormat).index(held))) if sizes else None


def _exceptions(held: Mapping[_Place, WeightFormat], classes: Mapping[str, WeightFormat]) -> dict[str, str]:
    """Tensors of another format than their class by layers; a role with one format in all layers has one entry."""
    by_role: dict[str, dict[_Place, WeightFormat]] = {}
    for place, held_as in held.items():
        by_role.setdefault(place.role, {})[place] = held_as
    found: dict[str, str] = {}
    for role, places in by_role.items():
        usual = classes[next(iter(places)).tensor_class]
        other = [place for place in places if places[place] != usual]
        if not other:
            continue
        if len(set(places.values())) == 1 and other[0].layer is not None:
            found[f"layers.*.{role}"] = str(places[other[0]])
        else:
            ordered = sorted(other, key=lambda place: place.layer or 0)
            found |= {place.canonical: str(places[place]) for place in ordered}
    return found
