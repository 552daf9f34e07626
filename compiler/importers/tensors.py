"""What the list of a model's tensors says: their formats, which biases there are, and whether embeddings are tied."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from mlxr.compiler.errors import SpecError
from mlxr.compiler.formats import WeightFormat
from mlxr.compiler.importers.rules import Rules
from mlxr.compiler.spec.names import load_tensor_names

_LAYER = re.compile(r"(?<=\.)(?:0|[1-9][0-9]{0,8})(?=\.)", re.ASCII)
_FORMATS = {held.gguf: held for held in WeightFormat} | {"F64": WeightFormat.F32}
_CLASSES = ("embedding", "attention", "mlp", "output")
_BIASED = {
    "qkv_bias": ("attention.q_bias", "attention.k_bias", "attention.v_bias"),
    "output_bias": ("attention.o_bias",),
    "mlp_bias": ("mlp.gate_bias", "mlp.up_bias", "mlp.down_bias"),
}


class TensorFact(NamedTuple):
    """A tensor as a file's header has it."""

    shape: tuple[int, ...]
    """Outermost dimension first."""
    type: str
    """As in files: F32, BF16, Q4_K."""


class _Place(NamedTuple):
    """A tensor's place in the model: `layers.3.attention.q` is role `attention.q` of layer 3."""

    role: str
    layer: str | None

    @property
    def canonical(self) -> str:
        return self.role if self.layer is None else f"layers.{self.layer}.{self.role}"

    @property
    def tensor_class(self) -> str:
        return self.role.partition(".")[0]


class Tensors:
    """The tensors of a file by their places in the model."""

    def __init__(
        self,
        source: str,
        tensors: Mapping[str, TensorFact],
        family: str,
        kind: Literal["gguf", "safetensors"],
        rules: Rules,
    ) -> None:
        """Finds each tensor's place. Those without one are left to the check of the weights when they are loaded.

        Raises:
            SpecError: a matrix has a type that cannot be held.
        """
        self._source, self._rules = source, rules
        names = {getattr(entry, kind): role for role, entry in load_tensor_names(family).tensors.items()}
        self._facts: dict[_Place, TensorFact] = {}
        for name, fact in tensors.items():
            numbers = _LAYER.findall(name)
            layer = numbers[0] if len(numbers) == 1 else None
            role = names.get(_LAYER.sub("{i}", name) if layer else name)
            if role is not None:
                self._facts[_Place(role.removeprefix("layers.{i}."), layer)] = fact
        self._roles = {place.role for place in self._facts}
        self.notes: tuple[str, ...] = ()

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table.

        Raises:
            SpecError: there is none.
        """
        table = self._facts.get(_Place("embedding", None))
        if table is None or len(table.shape) != 2:
            raise SpecError(f"{self._source}: holds no embedding table, so it is no whole language model")
        return table.shape[0]

    @property
    def has_output(self) -> bool:
        """Whether there is an output projection besides the embedding table."""
        return "output" in self._roles

    def biases(self) -> dict[str, bool]:
        """`qkv_bias`, `output_bias` and `mlp_bias`: whether the file has them.

        Raises:
            SpecError: only some of those that go together are there.
        """
        found = {}
        for name, roles in _BIASED.items():
            there = [role for role in roles if role in self._roles]
            if there and len(there) < len(roles):
                missing = next(role for role in roles if role not in there)
                raise SpecError(f"{self._source}: has {there[0]} but no {missing}; that is not supported")
            found[name] = bool(there)
        return found

    def formats(self, tied: bool) -> dict[str, Any]:
        """The `weights` section of a spec: the most frequent format of each class, and every exception.

        Args:
            tied: whether the embedding table is the output projection too; another one in the file is then unused.

        Raises:
            SpecError: a matrix has a type that cannot be held.
        """
        held = {
            place: self._format(place, fact)
            for place, fact in self._facts.items()
            if len(fact.shape) == 2 and not (tied and place.role == "output")
        }
        sizes: dict[str, Counter[WeightFormat]] = {name: Counter() for name in _CLASSES}
        for place, held_as in held.items():
            rows, columns = self._facts[place].shape
            sizes[place.tensor_class][held_as] += rows * columns
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

    def _format(self, place: _Place, fact: TensorFact) -> WeightFormat:
        if fact.type in _FORMATS:
            return _FORMATS[fact.type]
        if fact.type not in self._rules.widened:
            known = ", ".join([*_FORMATS, *self._rules.widened])
            raise SpecError(
                f"{self._source}: {place.canonical} is of type {fact.type[:40]!a}, which is not supported; "
                f"supported: {known}"
            )
        note = f"tensors of type {fact.type} are widened to f16 at load"
        if note not in self.notes:
            self.notes += (note,)
        return WeightFormat.F16


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
            ordered = sorted(other, key=lambda place: int(place.layer or 0))
            found |= {place.canonical: str(places[place]) for place in ordered}
    return found
