"""What an importer learns from the list of a model's tensors: which there are, and their formats."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats.tensor_parts import FileKind
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.spec.family import load_family
from mlxr.compiler.spec.family_tensors import FileTensor

_DECODED = (
    *("F8_E4M3", "F8_E5M2", "F4_E2M1", "NVFP4", "TQ1_0", "TQ2_0"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
)
"""Types that are read as bf16, since no kernel reads them as they lie in the file."""
_KERNELS_READ = (
    {format.gguf: format for format in WeightFormat if format.gguf is not None}
    | {str(format): format for format in WeightFormat if format.gguf is None}
    | {"F64": WeightFormat.F32}
)
_FORMATS = _KERNELS_READ | {name: WeightFormat.BF16 for name in _DECODED if name not in _KERNELS_READ}
_CLASSES = ("embedding", "attention", "mlp", "output")
_ONE_ROW = "shared.router"
"""The matrix of one row, of which converters to GGUF make a vector."""
_VECTORS = ("_bias", "norm", "sinks", ".conv", "_conv", "recurrent.a", "recurrent.d")
"""How the names of all others end, whatever their shapes in files."""


class TensorFact(NamedTuple):
    """A tensor as the header of a file describes it."""

    shape: tuple[int, ...]
    """Outermost dimension first."""
    type: str
    """As in files: F32, BF16, Q4_K; or the name of a format whose planes are several tensors."""


class _Place(NamedTuple):
    """A tensor's place in the model: `layers.3.attention.q` is role `attention.q` of layer 3."""

    role: str
    layer: int | None

    @property
    def canonical(self) -> str:
        return self.role if self.layer is None else f"layers.{self.layer}.{self.role}"

    @property
    def tensor_class(self) -> str:
        first = self.role.partition(".")[0]
        if first in ("position_embedding", "token_type_embedding", "layer_embedding"):
            return "embedding"
        if first == "recurrent":
            return "attention"
        return first if first in _CLASSES else "mlp"

    @property
    def is_matrix(self) -> bool:
        return not self.role.endswith(_VECTORS)


class Tensors:
    """The tensors of a file by their places in the model."""

    def __init__(
        self, source: str, tensors: Mapping[str, TensorFact], family: str, kind: FileKind, num_layers: int
    ) -> None:
        """Finds the tensor of each place. Tensors without a place are refused when the weights are loaded.

        Args:
            source: what error messages call the file.
            tensors: the tensors of the file.
            family: the name of the model's family.
            kind: the kind of file.
            num_layers: layers to look for.
        """
        self._source, self._tensors = source, tensors
        self._facts: dict[_Place, TensorFact] = {}
        self._decoded: set[_Place] = set()
        self._names: dict[_Place, str] = {}
        # Every layer has a tensor at least, so a larger count is wrong, and need not take long.
        layers = range(min(num_layers, len(tensors)))
        for name, entry in load_family(family).tensors.items():
            if entry is None:
                continue
            in_layer = "{i}" in name
            for layer in layers if in_layer else (None,):
                if (match := self._first(getattr(entry, kind), layer)) is not None:
                    place = _Place(name.removeprefix("layers.{i}."), layer)
                    self._names[place], self._facts[place], option = match
                    if option.transposed or option.unit_rows:
                        self._decoded.add(place)
        self._roles = {place.role for place in self._facts}

    def _first(self, options: tuple[FileTensor, ...], layer: int | None) -> tuple[str, TensorFact, FileTensor] | None:
        for option in options:
            name = option.tensor.replace("{i}", str(layer)).replace("{e}", "0")
            mark = option.beside
            fits = mark is None or any(
                mark in held and (not option.beside_wide or other.shape[-1] > 1)
                for held, other in self._tensors.items()
            )
            if (fact := self._tensors.get(name)) is not None and fits:
                return name, fact, option
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

    def has(self, role: str, layer: int | None = None) -> bool:
        """Whether there is a tensor of this role (`output`, `attention.q_bias`), in that layer or in any."""
        return role in self._roles if layer is None else _Place(role, layer) in self._facts

    def ends_in_one(self, role: str) -> bool:
        """Whether the tensors of a role have a last dimension of 1."""
        return any(fact.shape[-1:] == (1,) for place, fact in self._facts.items() if place.role == role)

    def rows(self, role: str) -> int | None:
        """Rows of the tensor of a role outside the layers; None where there is none."""
        fact = self._facts.get(_Place(role, None))
        return None if fact is None or not fact.shape else fact.shape[0]

    def head(self, num_layers: int) -> dict[str, Any]:
        """The part of a spec's `model` section that describes the head that guesses, behind so many layers."""
        if not self.has("mtp.join", num_layers):
            return {}
        return {"mtp": {"norm": self.has("mtp.norm", num_layers)}}

    def name(self, role: str) -> str | None:
        """What the file calls the tensor of a role outside the layers (`output`); None where it has none."""
        return self._names.get(_Place(role, None))

    @property
    def names(self) -> frozenset[str]:
        """What the file calls the tensors that have a place."""
        return frozenset(self._names.values())

    def fact(self, role: str) -> TensorFact | None:
        """The tensor of a role in the first layer; None where the file has none."""
        return self._facts.get(_Place(role, 0))

    def each_format(self, layer: int) -> dict[str, str]:
        """The format of each matrix of a layer, by its role.

        Raises:
            SpecError: as `formats`.
        """
        places = [place for place in self._matrices(tied=False) if place.layer == layer]
        return {place.role: str(self._format(place, self._facts[place])) for place in places}

    def formats(self, tied: bool) -> dict[str, Any]:
        """The `weights` section of a spec: the most frequent format of each class, and every exception.

        Args:
            tied: whether an output projection in the file is ignored: the embedding table is used, or there is none.

        Raises:
            SpecError: a matrix has a type that is not supported.
        """
        formats = {place: self._format(place, self._facts[place]) for place in self._matrices(tied)}
        sizes: dict[str, Counter[WeightFormat]] = {name: Counter() for name in _CLASSES}
        for place, format in formats.items():
            sizes[place.tensor_class][format] += prod(self._facts[place].shape)
        layers = sizes["attention"] + sizes["mlp"]
        default = _most(layers) or _most(sizes["embedding"]) or WeightFormat.F32
        classes = {name: _most(sizes[name]) or default for name in _CLASSES}
        if tied:
            classes["output"] = classes["embedding"]
        section: dict[str, Any] = {"default": str(default)}
        section |= {name: str(format) for name, format in classes.items() if format != default}
        if exceptions := _exceptions(formats, classes):
            section["tensors"] = exceptions
        return section

    def _matrices(self, tied: bool) -> Iterator[_Place]:
        for place, fact in self._facts.items():
            has_rows = len(fact.shape) > 1 or place.role.endswith(_ONE_ROW)
            if place.is_matrix and has_rows and not (tied and place.role == "output") and self._is_read(place):
                yield place

    def _is_read(self, place: _Place) -> bool:
        """Whether the model has a matrix: one that is a network's, or a shared expert's beside a router, is one."""
        block, _, role = place.role.rpartition(".")
        if block not in ("mlp", "mlp.shared"):
            return True
        network, shared = (self._names.get(_Place(f"{of}.{role}", place.layer)) for of in ("mlp", "mlp.shared"))
        is_shared = _Place("mlp.router", place.layer) in self._facts
        return network is None or network != shared or is_shared == (block == "mlp.shared")

    def _format(self, place: _Place, fact: TensorFact) -> WeightFormat:
        if fact.type not in _FORMATS:
            known = ", ".join(name for name in _FORMATS if not name.startswith("affine"))
            raise SpecError(
                f"{self._source}: {place.canonical} is of type {fact.type[:40]!a}, which is not supported; "
                f"supported: {known}, and MLX's affine"
            )
        format = _FORMATS[fact.type]
        # Blocks lie along rows, and hold these as they are: what is transposed or divided is decoded.
        return WeightFormat.F16 if format.is_quantised and place in self._decoded else format


def _most(sizes: Counter[WeightFormat]) -> WeightFormat | None:
    """The format of the most elements; if several have as many, the first of them in WeightFormat."""
    return max(sizes, key=lambda format: (sizes[format], -list(WeightFormat).index(format))) if sizes else None


def _exceptions(formats: Mapping[_Place, WeightFormat], classes: Mapping[str, WeightFormat]) -> dict[str, str]:
    """Tensors whose format is not that of their class; a role with one format in all layers is one entry."""
    by_role: dict[str, dict[_Place, WeightFormat]] = {}
    for place, format in formats.items():
        by_role.setdefault(place.role, {})[place] = format
    exceptions: dict[str, str] = {}
    for role, places in by_role.items():
        usual = classes[next(iter(places)).tensor_class]
        other = [place for place in places if places[place] != usual]
        if not other:
            continue
        if len(set(places.values())) == 1 and other[0].layer is not None:
            exceptions[f"layers.*.{role}"] = str(places[other[0]])
        else:
            ordered = sorted(other, key=lambda place: place.layer or 0)
            exceptions |= {place.canonical: str(places[place]) for place in ordered}
    return exceptions
