"""Evaluates what families say of the keys of a file: from expressions to the `model` section of a spec.

See `mlxr.compiler.spec.mapping` for what expressions look like.
"""

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, Literal, Protocol

from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.facts import Facts, shortest_f32
from mlxr.compiler.spec.explain import show
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.schema import Place, schema_of

Want = Literal["integer", "number", "flag", "text", "layers", "any"]
NULL: Final = object()
"""What `{is: null}` says: null, and not that nothing is said."""
_MAX_LAYERS = 1024


class Holds(Protocol):
    """The tensors of a file, as far as expressions ask for them."""

    def has(self, role: str) -> bool:
        """Whether there is a tensor of this canonical role, in any layer."""


class RopeReader(Protocol):
    """Reads how a file says that positions are rotated."""

    def __call__(self, layers: str | None, theta: float, fraction: float | None) -> dict[str, Any] | None:
        """A spec's `rope` section.

        Args:
            layers: which layers, where the family's own code tells them apart: `full_attention` or
                `sliding_attention`; else `any`.
            theta: the base, unless the file has another with the rest of what it says of RoPE.
            fraction: the share of a head, likewise; None: the family's own code always rotates whole heads.
        """


class Evaluation:
    """Reads the facts of one file by the rules of one family."""

    def __init__(self, facts: Facts, held: Holds, rope: RopeReader) -> None:
        """Prepares to read.

        Args:
            facts: of the file.
            held: its tensors.
            rope: reads what it says of RoPE.
        """
        self.facts, self._held, self._rope = facts, held, rope
        self._num_layers = 0

    def model(self) -> dict[str, Any]:
        """The `model` section that the rules give: every property that is said, the rest left out.

        Raises:
            SpecError: a key has a value of no use, is missing and has no default, or contradicts what else is said.
        """
        self._num_layers = self._checked_layers()
        model: dict[str, Any] = {}
        for path in sorted(self.facts.rules.set, key=lambda path: path.count(".")):
            value = self.value(self.facts.rules.set[path], _wanted(path))
            if value is not None:
                _put(model, path.split("."), None if value is NULL else value)
        for key, expression in self.facts.rules.must_equal.items():
            expected = self.value(expression, "any")
            said = None if expected is None else self.facts.scalar(key)
            if said is not None and said != expected:
                raise self.facts.refuse(
                    key, said, f"{show(None if expected is NULL else expected)}, as the rest of the file has it"
                )
        return _simplified(model, self._num_layers)

    def _checked_layers(self) -> int:
        expression = self.facts.rules.set["num_layers"]
        layers = self.value(expression, "integer")
        if not isinstance(layers, int) or not 1 <= layers <= _MAX_LAYERS:
            raise self.facts.refuse(_told(expression), layers, f"from 1 to {_MAX_LAYERS} layers")
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
            return NULL if expression["is"] is None else deepcopy(expression["is"])  # what is put into it stays ours
        if "has" in expression:
            return self._held.has(expression["has"])
        if "if" in expression:
            condition = self.value(expression["if"])
            return self.value(expression["then" if condition not in (None, NULL, False, 0) else "else"], want)
        if "call" in expression:
            return _FUNCTIONS[expression["call"]](self, expression["of"])
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
        if value is None:
            if required:
                raise facts.missing(key)
            return self.value(default, want)
        if choices is not None:
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
            return [self._chosen(key, item, choices) for item in value[: _MAX_LAYERS + 1]]
        word = show(value) if isinstance(value, bool | int) else value
        if not isinstance(word, str) or word not in choices:
            raise self.facts.refuse(key, value, f"one of {', '.join(choices)}")
        return choices[word]

    def numbers(self, of: list[Any]) -> list[float] | None:
        """Arguments that are numbers, or None where one is not said."""
        found = []
        for expression in of:
            value = self.value(expression)
            if value is None:
                return None
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self.facts.refuse(_told(expression), value, "a number")
            try:
                if not math.isfinite(float(value)):
                    raise self.facts.refuse(_told(expression), value, "a finite number")
            except OverflowError:
                raise self.facts.refuse(_told(expression), value, "a number of fewer digits") from None
            found.append(value)
        return found

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return self._num_layers

    def rope(self, of: list[Any]) -> dict[str, Any] | None:
        """A `rope` section."""
        layers, theta = self.value(of[0]), self.numbers(of[1:2])
        fraction = self.numbers(of[2:3])
        if theta is None:
            raise self.facts.missing(_told(of[1]))
        return self._rope(layers, float(theta[0]), float(fraction[0]) if fraction else None)

    def count(self, expression: Any) -> int:
        """A whole number from 0 to the most layers."""
        value = self.value(expression)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_LAYERS:
            raise self.facts.refuse(_told(expression), value, f"a whole number from 0 to {_MAX_LAYERS}")
        return value


def _arithmetic(work: Callable[..., float]) -> Callable[[Evaluation, list[Any]], Any]:
    def apply(evaluation: Evaluation, of: list[Any]) -> Any:
        numbers = evaluation.numbers(of)
        if numbers is None:
            return None
        try:
            return work(*numbers)
        except (ValueError, ZeroDivisionError, OverflowError):
            said = ", ".join(f"{_told(expression)} {number}" for expression, number in zip(of, numbers, strict=True))
            raise SpecError(f"{evaluation.facts.source}: {said}: of these nothing can be computed") from None

    return apply


def _told(expression: Any) -> str:
    """An expression, for messages: the key that it is about."""
    return str(expression.get("key", "a number") if isinstance(expression, dict) else expression)


def _divide(a: float, b: float) -> float:
    whole = isinstance(a, int) and isinstance(b, int)
    return a // b if whole else a / b


def _unless(evaluation: Evaluation, of: list[Any]) -> Any:
    """The first value, or nothing where it is one of the others."""
    value, *neutral = (evaluation.value(expression) for expression in of)
    return None if any(_alike(value, other) for other in neutral) else value


def _alike(value: Any, other: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(other, int | float):
        return type(value) is type(other) and bool(value == other)
    return math.isclose(value, other, rel_tol=1e-6)


def _equal(evaluation: Evaluation, of: list[Any]) -> bool:
    first, second = (evaluation.value(expression) for expression in of)
    return bool(first == second)


def _every(evaluation: Evaluation, of: list[Any]) -> list[str] | None:
    """Of layers that repeat, the last is another: (how many repeat, the usual, the last)."""
    if evaluation.value(of[0]) is None:
        return None
    count = evaluation.count(of[0])
    usual, last = evaluation.value(of[1]), evaluation.value(of[2])
    return [*[usual] * (count - 1), last] if count else [usual]


def _after(evaluation: Evaluation, of: list[Any]) -> list[str]:
    """The first layers are of one type, the rest of another: (how many first, their type, the type of the rest)."""
    count = min(evaluation.count(of[0]), evaluation.num_layers)
    return [evaluation.value(of[1])] * count + [evaluation.value(of[2])] * (evaluation.num_layers - count)


def _letters(evaluation: Evaluation, of: list[Any]) -> list[str] | None:
    """Layers by letters: (the text, a letter, its type, ...)."""
    text, *rest = (evaluation.value(expression) for expression in of)
    types = dict(zip(rest[::2], rest[1::2], strict=True))
    if text is None:
        return None
    if not isinstance(text, str) or not text or len(text) > _MAX_LAYERS or not set(text) <= types.keys():
        raise evaluation.facts.refuse(_told(of[0]), text, f"a word of the letters {', '.join(types)}")
    return [types[letter] for letter in text]


def _sparse(evaluation: Evaluation, of: list[Any]) -> list[str]:
    """Layers with experts: (every how many, a list of those without all the same, the type with, the type without)."""
    step, dense = evaluation.count(of[0]), evaluation.facts.get(of[1]) or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise evaluation.facts.refuse(of[1], dense, "a list of layers")
    types = [evaluation.value(of[2]), evaluation.value(of[3])]
    return [
        types[0] if layer not in dense and step and (layer + 1) % step == 0 else types[1]
        for layer in range(evaluation.num_layers)
    ]


_FUNCTIONS: Mapping[str, Callable[[Evaluation, list[Any]], Any]] = {
    "divide": _arithmetic(_divide),
    "multiply": _arithmetic(lambda *numbers: math.prod(numbers)),
    "sqrt": _arithmetic(math.sqrt),
    "inverse": _arithmetic(lambda value: 1 / value),
    "inverse_sqrt": _arithmetic(lambda value: 1 / math.sqrt(value)),
    "unless": _unless,
    "equal": _equal,
    "not": lambda evaluation, of: evaluation.value(of[0]) in (None, NULL, False, 0),
    "every": _every,
    "after": _after,
    "letters": _letters,
    "sparse": _sparse,
    "rope": Evaluation.rope,
}


def _wanted(path: str) -> Want:
    """The kind of value that a property of `model` has, by the schema."""
    if path == "layer_pattern":
        return "layers"
    place = Place(_SCHEMA).child("model")
    steps = path.split(".")
    if steps[0] == "layer_types":
        steps = steps[2:]
    for step in steps:
        place = place.child(step)
    if place.choices:
        return "any"
    wants: dict[Any, Want] = {"integer": "integer", "number": "number", "boolean": "flag"}
    return wants.get(place.node.get("type"), "any")


_SCHEMA = schema_of(ModelSpec)


def _put(model: dict[str, Any], steps: list[str], value: Any) -> None:
    for step in steps[:-1]:
        inner = model.setdefault(step, {})
        if inner is None:  # a section that is null as a whole has no keys
            return
        model = inner
    model[steps[-1]] = value


def _simplified(model: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """Layer types that no layer has left out; if all layers are of one type, its properties are the model's.

    Not so RoPE: the model's own is what the file says first, and weights are recognised by it.
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
    found = dict(base)
    for key, value in over.items():
        inner = base.get(key)
        found[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return found
