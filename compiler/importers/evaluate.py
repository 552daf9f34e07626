"""Evaluates a family's import rules: from what a file says to the `model` section of a spec.

See `mlxr.compiler.spec.expression` for the language of the rules.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from fnmatch import fnmatchcase
from types import NoneType
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.facts import Facts, shortest_f32
from mlxr.compiler.spec.explain import show
from mlxr.compiler.spec.fields import MAX_LAYERS
from mlxr.compiler.spec.functions import FUNCTIONS, NULL, is_false
from mlxr.compiler.spec.model import Model

Want = Literal["integer", "number", "flag", "text", "layers", "any"]


class TensorRoles(Protocol):
    """Which tensors a file has."""

    def has(self, role: str, layer: int | None = None) -> bool:
        """Whether there is a tensor of this canonical role, in that layer or in any."""

    def ends_in_one(self, role: str) -> bool:
        """Whether the tensors of a role have a last dimension of 1."""

    def rows(self, role: str) -> int | None:
        """Rows of the tensor of a role outside the layers; None where there is none."""


class RopeReader(Protocol):
    """Reads how a file says that positions are rotated."""

    def __call__(self, layers: str | None, theta: float, fraction: float | None) -> dict[str, Any] | None:
        """A spec's `rope` section.

        Args:
            layers: which layers, where the family's own code tells them apart: `full_attention` or
                `sliding_attention`; else `any`, `axes` where a position may have several, as images need, `alpha`
                where dynamic scaling may have an alpha, which is scaling of another kind, or `halved` of GGUF files
                where half of what the file says is rotated.
            theta: the base, unless the file has one beside its other keys of RoPE.
            fraction: the rotated share of a head, likewise; None: the family's own code always rotates whole heads.
        """

    def score_factor(self) -> float:
        """What scores are multiplied by, of families that read DeepSeek's `mscale_all_dim`: the mscale, squared."""


class Evaluation:
    """Reads the facts of one file by the rules of one family.

    Attributes:
        num_layers: how many layers the model has; no rule takes it from tensors, which are found by it.
    """

    def __init__(self, facts: Facts, rope: RopeReader) -> None:
        """Reads the number of layers.

        Args:
            facts: what the file says.
            rope: reads how the file says that positions are rotated.

        Raises:
            SpecError: the number is missing, or is none that a model can have.
        """
        self.facts, self.rope = facts, rope
        self._tensors: TensorRoles | None = None
        self.num_layers = self._checked_layers()

    def model(self, tensors: TensorRoles) -> dict[str, Any]:
        """The `model` section by the rules: the properties that the file says, without the rest.

        Args:
            tensors: the file's tensors.

        Raises:
            SpecError: a key has a value that cannot be used, is missing without a default, or contradicts another key.
        """
        self._tensors = tensors
        model: dict[str, Any] = {}
        for path in sorted(self.facts.rules.set, key=lambda path: path.count(".")):
            value = self.value(self.facts.rules.set[path], _wanted(path))
            if value is not None:
                for steps in _places(model, path.split(".")):
                    _put(model, steps, None if value is NULL else deepcopy(value))
        for key, expression in self.facts.rules.must_equal.items():
            expected = self.value(expression, "any")
            value = None if expected is None else self.value(key)
            if value is not None and value != expected:
                raise self.facts.refuse(
                    key, value, f"{show(None if expected is NULL else expected)}, as the rest of the file has it"
                )
        return _simplified(model, self.num_layers)

    @property
    def tensors(self) -> TensorRoles:
        """The file's tensors."""
        assert self._tensors is not None, "no rule takes the number of layers from tensors"
        return self._tensors

    def _checked_layers(self) -> int:
        expression = self.facts.rules.set["num_layers"]
        layers = self.value(expression, "integer")
        if not isinstance(layers, int) or not 1 <= layers <= MAX_LAYERS:
            raise self.facts.refuse(key_of(expression), layers, f"from 1 to {MAX_LAYERS} layers")
        return layers

    def value(self, expression: Any, want: Want = "any") -> Any:
        """What an expression says, or None where it says nothing.

        Raises:
            SpecError: as `model`.
        """
        if isinstance(expression, str):
            return self._key(expression, want, None, None, required=want != "any")
        if not isinstance(expression, dict):
            return expression
        if "is" in expression:
            return NULL if expression["is"] is None else deepcopy(expression["is"])  # a copy: callers put keys into it
        if "has" in expression:
            return self.tensors.has(expression["has"])
        if "if" in expression:
            return self.value(expression["else" if is_false(self.value(expression["if"])) else "then"], want)
        if "call" in expression:
            return FUNCTIONS[expression["call"]].apply(_Arguments(self, expression["of"]))
        if "absent" in expression and not self.facts.has(expression["key"]):
            return self.value(expression["absent"], want)
        return self._key(
            expression["key"],
            want,
            expression.get("choices"),
            expression.get("default"),
            required="default" not in expression,
        )

    def _key(self, key: str, want: Want, choices: Mapping[str, Any] | None, default: Any, *, required: bool) -> Any:
        facts = self.facts
        value = facts.get(key) if want == "layers" else facts.scalar(key)
        if value is None or (want == "layers" and value == []):
            if required:
                raise facts.missing(key)
            return self.value(default, want)
        if choices is not None:
            if isinstance(value, list) and want == "layers" and len(value) < self.num_layers:
                raise facts.refuse(key, value, f"one of {', '.join(choices)} for each of {self.num_layers} layers")
            return self._chosen(key, value, choices)
        if want == "integer":
            return facts.integer(key)
        if want == "number":
            return shortest_f32(facts.number(key))
        if want == "flag":
            return facts.flag(key, False)
        if want == "text" and not isinstance(value, str):
            raise facts.refuse(key, value, "text")
        return shortest_f32(value) if isinstance(value, float) else value

    def _chosen(self, key: str, value: Any, choices: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [self._chosen(key, item, choices) for item in value[: MAX_LAYERS + 1]]
        word = show(value) if isinstance(value, bool | int) else value
        if not isinstance(word, str) or word not in choices:
            raise self.facts.refuse(key, value, f"one of {', '.join(choices)}")
        return choices[word]


class _Arguments:
    """See `mlxr.compiler.spec.functions.Arguments`."""

    def __init__(self, evaluation: Evaluation, of: list[Any]) -> None:
        self._evaluation, self._of = evaluation, of

    @property
    def num_layers(self) -> int:
        return self._evaluation.num_layers

    def __len__(self) -> int:
        return len(self._of)

    def value(self, index: int) -> Any:
        return self._evaluation.value(self._of[index])

    def key(self, index: int) -> Any:
        return self._evaluation.facts.get(self._of[index])

    def layers(self, index: int) -> list[str] | None:
        value = self._evaluation.value(self._of[index], "layers")
        return [value] if isinstance(value, str) else value

    def number(self, index: int) -> float | None:
        value = self.value(index)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(index, value, "a number")
        try:
            if not math.isfinite(float(value)):
                raise self.refuse(index, value, "a finite number")
        except OverflowError:
            raise self.refuse(index, value, "a number of fewer digits") from None
        return value

    def count(self, index: int) -> int:
        value = self.value(index)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_LAYERS:
            raise self.refuse(index, value, f"a whole number from 0 to {MAX_LAYERS}")
        return value

    def rope(self, layers: str | None, theta: float, fraction: float | None) -> dict[str, Any] | None:
        return self._evaluation.rope(layers, theta, fraction)

    def score_factor(self) -> float:
        return self._evaluation.rope.score_factor()

    def has(self, role: str, layer: int) -> bool:
        return self._evaluation.tensors.has(role, layer)

    def ends_in_one(self, role: str) -> bool:
        return self._evaluation.tensors.ends_in_one(role)

    def rows(self, role: str) -> int | None:
        return self._evaluation.tensors.rows(role)

    def has_all(self, role: str, types: list[str], kind: str) -> bool:
        tensors = self._evaluation.tensors
        layers = [layer for layer in range(self.num_layers) if types and types[layer % len(types)] == kind]
        return all(tensors.has(role, layer) for layer in layers)

    def missing(self, index: int) -> SpecError:
        return self._evaluation.facts.missing(key_of(self._of[index]))

    def refuse(self, index: int, value: object, expected: str) -> SpecError:
        return self._evaluation.facts.refuse(key_of(self._of[index]), value, expected)

    def impossible(self, numbers: list[float]) -> SpecError:
        values = ", ".join(f"{_spelled(of)} {number}" for of, number in zip(self._of, numbers, strict=True))
        return SpecError(f"{self._evaluation.facts.source}: {values}: of these nothing can be computed")


def key_of(expression: Any) -> str:
    """The key that an expression is about, for messages."""
    if isinstance(expression, dict) and "call" in expression:
        return key_of(expression["of"][0])
    return str(expression.get("key", "a number") if isinstance(expression, dict) else expression)


def _spelled(expression: Any) -> str:
    """As `key_of`, with all that a call computes with."""
    if isinstance(expression, dict) and "call" in expression:
        return f"{expression['call']}({', '.join(_spelled(of) for of in expression['of'])})"
    return key_of(expression)


def _wanted(path: str) -> Want:
    """The kind of value that a property of `model` has."""
    if path == "layer_pattern":
        return "layers"
    steps = path.split(".")
    kind: Any = Model
    for step in steps[2:] if steps[0] == "layer_types" else steps:
        fields = (getattr(variant, "model_fields", {}).get(step) for variant in get_args(kind) or (kind,))
        field = next((field for field in fields if field is not None), None)
        kind = field and _plain_type(field.annotation)
    wants: dict[Any, Want] = {int: "integer", float: "number", bool: "flag"}
    return wants.get(kind, "any")


def _plain_type(annotation: Any) -> Any:
    """A type without its bounds, and without `or None`."""
    if get_origin(annotation) is Annotated:
        return _plain_type(get_args(annotation)[0])
    some = [kind for kind in get_args(annotation) if kind is not NoneType]
    return _plain_type(some[0]) if NoneType in get_args(annotation) and len(some) == 1 else annotation


def _places(model: dict[str, Any], steps: list[str]) -> list[list[str]]:
    """The path itself; of a pattern with `*` for layer types, that of each type of this name that layers have."""
    if steps[0] != "layer_types" or "*" not in steps[1]:
        return [steps]
    names = dict.fromkeys(str(name) for name in model.get("layer_pattern") or ())
    return [["layer_types", name, *steps[2:]] for name in names if fnmatchcase(name, steps[1])]


def _put(model: dict[str, Any], steps: list[str], value: Any) -> None:
    for step in steps[:-1]:
        inner = model.setdefault(step, {})
        if inner is None:  # the whole section is null
            return
        model = inner
    model[steps[-1]] = value


def _simplified(model: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """Leaves out layer types that no layer has. If all layers have one type, its properties become the model's.

    RoPE is an exception: the model's own section is what the file says first, by which weights are recognised.
    """
    types, pattern = model.pop("layer_types", {}), model.pop("layer_pattern", None)
    if not pattern:
        return model
    pattern = [str(name) for name in pattern][:num_layers]
    used = {name: types.get(name, {}) for name in dict.fromkeys(pattern)}
    distinct = [name for name in used if used[name] != used[pattern[0]]]
    if not distinct and not isinstance(used[pattern[0]].get("rope"), dict):
        return _merged(model, used[pattern[0]])
    period = next(n for n in range(1, len(pattern) + 1) if all(p == pattern[i % n] for i, p in enumerate(pattern)))
    return model | {"layer_types": used, "layer_pattern": pattern[:period]}


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        inner = base.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged
