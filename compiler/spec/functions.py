"""The functions of the expression language: `{call: F, of: [X, ...]}`.

To add a function, write it here and give it an entry in FUNCTIONS. It gets its arguments unevaluated, as `Arguments`: a
key counts as read only if the function asks for its value.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec.fields import MAX_LAYERS

_NEARLY = 1e-6
"""Added before numbers are rounded down that may be a whole one but for an error."""
NULL: Final = object()
"""The value of `{is: null}`, which says null; None means that nothing is said."""


def is_false(value: Any) -> bool:
    """Whether a condition with this value does not hold."""
    return value in (None, NULL, False, 0)


class Arguments(Protocol):
    """The arguments of a call, by their indices, and what functions need of the model."""

    @property
    def num_layers(self) -> int:
        """Layers of the model."""

    def __len__(self) -> int:
        """How many arguments there are."""

    def value(self, index: int, /) -> Any:
        """An argument's value; None where the file does not say it."""

    def key(self, index: int, /) -> Any:
        """The value of the key that an argument names, whatever its type."""

    def layers(self, index: int, /) -> list[str] | None:
        """Names of layer types, which are repeated over the layers; None where the file does not say it."""

    def number(self, index: int, /) -> float | None:
        """A finite number; None where the file does not say it."""

    def count(self, index: int, /) -> int:
        """A whole number from 0 to MAX_LAYERS."""

    def rope(self, layers: str | None, theta: float, fraction: float | None, /) -> dict[str, Any] | None:
        """How the file says that positions are rotated, as a spec's `rope` section."""

    def score_factor(self) -> float:
        """What scores are multiplied by where positions are stretched: DeepSeek's mscale, squared."""

    def has(self, role: str, layer: int, /) -> bool:
        """Whether a layer has a tensor of this role."""

    def ends_in_one(self, role: str, /) -> bool:
        """Whether the tensors of a role have a last dimension of 1."""

    def rows(self, role: str, /) -> int | None:
        """Rows of the tensor of a role outside the layers; None where there is none."""

    def has_all(self, role: str, types: list[str], kind: str, /) -> bool:
        """Whether every layer of a type has a tensor of this role."""

    def missing(self, index: int, /) -> SpecError:
        """The error for an argument whose key is required."""

    def refuse(self, index: int, value: object, expected: str, /) -> SpecError:
        """The error for a value that cannot be used."""

    def impossible(self, numbers: list[float], /) -> SpecError:
        """The error for numbers that the function is not defined for."""


@dataclass(frozen=True)
class Function:
    """A function, and the fewest and the most arguments that it takes."""

    fewest: int
    most: int
    apply: Callable[[Arguments], Any]


def _arithmetic(work: Callable[..., float]) -> Callable[[Arguments], float | None]:
    """A function of numbers, null where one of them is."""

    def apply(of: Arguments) -> float | None:
        numbers: list[float] = []
        for index in range(len(of)):
            if (number := of.number(index)) is None:
                return None
            numbers.append(number)
        try:
            return work(*numbers)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise of.impossible(numbers) from None

    return apply


def _divide(a: float, b: float) -> float:
    return a // b if isinstance(a, int) and isinstance(b, int) else a / b


def _round_up(a: float, b: float) -> float:
    return math.ceil(math.floor(a + _NEARLY) / b) * b


def _unless(of: Arguments) -> Any:
    """The first value, or nothing where it is one of the others."""
    value, *neutral = (of.value(index) for index in range(len(of)))
    return None if any(_alike(value, other) for other in neutral) else value


def _alike(value: Any, other: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(other, int | float):
        return type(value) is type(other) and bool(value == other)
    return math.isclose(value, other, rel_tol=1e-6)


def _every(of: Arguments) -> list[str] | None:
    """A period of layer types that ends in another type: (its length, the usual type, the last one's type, layers).

    The last argument, which may be missing, is how many layers of the usual type come before the first period.
    """
    if of.value(0) is None:
        return None
    count, usual, last = of.count(0), of.value(1), of.value(2)
    if len(of) > 3 and count:
        first = of.count(3)
        return [
            last if layer >= first and (layer - first) % count == count - 1 else usual for layer in range(of.num_layers)
        ]
    return [*[usual] * (count - 1), last] if count else [usual]


def _begins(of: Arguments) -> list[str] | None:
    """A period of layer types that begins with another type: (its length, the first one's type, the usual type)."""
    if of.value(0) is None:
        return None
    return [of.value(1), *[of.value(2)] * (max(of.count(0), 1) - 1)]


def _after(of: Arguments) -> list[str]:
    """The first layers are of one type, the rest of another: (how many first, their type, the type of the rest)."""
    count = min(of.count(0), of.num_layers)
    return [of.value(1)] * count + [of.value(2)] * (of.num_layers - count)


def _flags(of: Arguments) -> list[str] | None:
    """Types of layers by a key: (the key, its default, the type where true, the other).

    The key has a flag for each layer, or a number n: then every n-th layer is of the other type.
    """
    flags = of.key(0)
    if flags is None:
        flags = of.value(1)
    if isinstance(flags, list):
        if len(flags) < of.num_layers or not all(flag in (True, False) for flag in flags):
            raise of.refuse(0, flags, f"true or false for each of {of.num_layers} layers")
        return [of.value(2 if flag else 3) for flag in flags[: of.num_layers]]
    if not isinstance(flags, int) or isinstance(flags, bool) or not 0 <= flags <= MAX_LAYERS:
        raise of.refuse(0, flags, f"true or false for each layer, or a whole number from 0 to {MAX_LAYERS}")
    return [of.value(2)] * (flags - 1) + [of.value(3)] if flags else [of.value(2)]


def _letters(of: Arguments) -> list[str] | None:
    """Types of layers by letters: (the text, a letter, its type, ...).

    A number n instead of the text: every n-th layer is of the second type, and all others of the first.
    """
    text, *rest = (of.value(index) for index in range(len(of)))
    types = dict(zip(rest[::2], rest[1::2], strict=True))
    if text is None:
        return None
    if isinstance(text, int) and 2 <= text <= MAX_LAYERS:
        return [rest[1]] * (text - 1) + [rest[3]]
    if not isinstance(text, str) or not text or len(text) > MAX_LAYERS or not set(text) <= types.keys():
        raise of.refuse(0, text, f"a word of the letters {', '.join(types)}")
    return [types[letter] for letter in text]


def _sparse(of: Arguments) -> list[str]:
    """Types of a mixture: (n, a key with a list of layers, the type of every n-th layer not in the list, the other)."""
    step, dense = of.count(0), of.key(1) or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise of.refuse(1, dense, "a list of layers")
    with_experts, without = of.value(2), of.value(3)
    return [
        with_experts if layer not in dense and step and (layer + 1) % step == 0 else without
        for layer in range(of.num_layers)
    ]


def _between(of: Arguments) -> list[str]:
    """Types of a mixture: (its first layer, its last one or -1, n, the type of every n-th layer of them, the other)."""
    first, step, last = of.count(0), of.count(2), of.value(1)
    if not isinstance(last, int) or isinstance(last, bool) or last < -1:
        raise of.refuse(1, last, "a layer, or -1 for the last one")
    last = of.num_layers - 1 if last == -1 else last
    with_experts, without = of.value(3), of.value(4)
    return [
        with_experts if first <= layer <= last and step and (layer + 1) % step == 0 else without
        for layer in range(of.num_layers)
    ]


def _among(of: Arguments) -> list[str] | None:
    """Types by a list: (the key that has it, the type of layers in it, the other, types without the key, layer 0).

    The last one, which may be missing, is the number that the list has for the first layer.
    """
    listed, first = of.key(0), of.count(4) if len(of) > 4 else 0
    if listed is None:
        return of.layers(3)
    if isinstance(listed, str) and all(part.strip().isdecimal() for part in listed.split(",")):
        listed = [int(part) for part in listed.split(",")]
    if not isinstance(listed, list) or not all(isinstance(layer, int) for layer in listed):
        raise of.refuse(0, listed, "a list of layers")
    return [of.value(1 if first + layer in listed else 2) for layer in range(of.num_layers)]


def _cross(of: Arguments) -> list[str] | None:
    """Layers that differ in several things: (types, types, ...), whose names are joined: a type is `rotated_sparse`."""
    lists = [types for index in range(len(of)) if (types := of.layers(index))]
    if len(lists) < len(of):
        return None
    return ["_".join(types[layer % len(types)] for types in lists) for layer in range(of.num_layers)]


def _of_type(of: Arguments) -> Any:
    """What a list has for layers of a type: (the key, the types of layers, the type, the value without the key)."""
    values, types, wanted = of.key(0), of.layers(1) or [], of.value(2)
    if values is None or not types:
        return of.value(3)
    if not isinstance(values, list):
        return values
    if len(values) < of.num_layers:
        raise of.refuse(0, values, f"a value for each of {of.num_layers} layers")
    found = [value for layer, value in enumerate(values[: of.num_layers]) if types[layer % len(types)] == wanted]
    if any(value != found[0] for value in found):
        raise of.refuse(0, values, f"one value for all layers of type {wanted}")
    return found[0] if found else None


def _tail(of: Arguments) -> list[str] | None:
    """Layers of which the last ones are others: (types, how many last ones, the last layer's type, a, its other, ...).

    The type of the last layer may be null, for what the types say.
    """
    types = of.layers(0)
    if not types:
        return None
    names = [types[layer % len(types)] for layer in range(of.num_layers)]
    count, last, rest = of.count(1), of.value(2), [of.value(index) for index in range(3, len(of))]
    names[-1] = names[-1] if last is None else last
    others = dict(zip(rest[::2], rest[1::2], strict=True))
    first = max(len(names) - count, 0)
    return [*names[:first], *(others.get(name, name) for name in names[first:])]


def _field_of_type(of: Arguments) -> Any:
    """A field of layers of a type: (a key with fields of layers by their numbers, the field, types, the type)."""
    held, field, types, kind = of.key(0), of.value(1), of.layers(2) or [], of.value(3)
    if not isinstance(held, dict) or not all(key.isdecimal() for key in held):
        raise of.refuse(0, held, "fields of layers by their numbers")
    by_number = {int(key): fields for key, fields in held.items()}  # which may begin with zeros
    fields = [by_number.get(layer) for layer in range(of.num_layers) if types and types[layer % len(types)] == kind]
    values = [each.get(field) if isinstance(each, dict) else None for each in fields]
    if any(value != values[0] for value in values):
        raise of.refuse(0, held, f"the same for all layers of type {kind}")
    return values[0] if values else None


def _field(of: Arguments) -> Any:
    """A field of an object: (the key that has it, the field, the value without it)."""
    held = of.key(0)
    value = held.get(of.value(1)) if isinstance(held, dict) else None
    return of.value(2) if value is None else value


def _item(of: Arguments) -> Any:
    """A number of a list: (the key that has it, its place from 0 on, the value without it, or where it is infinite)."""
    held, place = of.key(0), of.count(1)
    if held is None:
        return of.value(2)
    if not isinstance(held, list) or len(held) <= place:
        raise of.refuse(0, held, f"a list of at least {place + 1} number{'s' * (place > 0)}")
    number = held[place]
    if isinstance(number, dict) and number.keys() == {"__float__"}:  # as transformers writes what JSON has no word for
        number = float(number["__float__"])
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise of.refuse(0, held, "a list of numbers")
    return float(number) if math.isfinite(number) else of.value(2)


def _length(of: Arguments) -> Any:
    """How many items, or letters, the first key has that the file says: (the number without, a key, ...)."""
    for index in range(1, len(of)):
        if (held := of.key(index)) is not None:
            if not isinstance(held, list | str):
                raise of.refuse(index, held, "a list of layers")
            return len(held)
    return of.value(0)


def _bounded(of: Arguments) -> list[str]:
    """Types of layers by bounds: (a key with a number for each layer, or for all, the type above 0, the other)."""
    numbers = of.key(0)
    numbers = numbers if isinstance(numbers, list) else [numbers] * of.num_layers
    known = all(number is None or (isinstance(number, int | float) and number >= 0) for number in numbers)
    if len(numbers) < of.num_layers or not known:
        raise of.refuse(0, numbers, f"a number from 0 on for each of {of.num_layers} layers")
    return [of.value(1 if number else 2) for number in numbers[: of.num_layers]]


def _where(of: Arguments) -> list[str]:
    """Types of layers by their tensors: (a role, the type of layers that have such a tensor, the other)."""
    return [of.value(1 if of.has(of.value(0), layer) else 2) for layer in range(of.num_layers)]


def _rope(of: Arguments) -> dict[str, Any] | None:
    """A `rope` section: (which layers, the base, the share of a head that is rotated, its elements).

    With the elements, a share of them that is not a whole number is rounded down.
    """
    layers, theta = of.value(0), of.number(1)
    fraction, size = (of.number(index) if len(of) > index else None for index in (2, 3))
    if theta is None:
        raise of.missing(1)
    rope = of.rope(layers, float(theta), None if fraction is None else float(fraction))
    if rope is not None and size:
        rope["fraction"] = int(rope["fraction"] * size + _NEARLY) / size
    return rope


def _score_scale(of: Arguments) -> float | None:
    """The factor of scores of heads of so many elements, stretched positions included: (elements, ...), added up."""
    numbers = [of.number(index) for index in range(len(of))]
    sizes = [number for number in numbers if number is not None]
    if len(sizes) < len(numbers) or sum(sizes) <= 0:
        raise of.missing(0)
    factor = of.score_factor()
    return None if factor == 1 else factor / math.sqrt(sum(sizes))


FUNCTIONS = {
    "divide": Function(2, 2, _arithmetic(_divide)),
    "add": Function(2, 2, _arithmetic(lambda a, b: a + b)),
    "subtract": Function(2, 2, _arithmetic(lambda a, b: a - b)),
    "multiply": Function(2, 8, _arithmetic(lambda *numbers: math.prod(numbers))),
    "sqrt": Function(1, 1, _arithmetic(math.sqrt)),
    "inverse": Function(1, 1, _arithmetic(lambda value: 1 / value)),
    "inverse_sqrt": Function(1, 1, _arithmetic(lambda value: 1 / math.sqrt(value))),
    "round_up": Function(2, 2, _arithmetic(_round_up)),
    "least": Function(2, 8, _arithmetic(min)),
    "unless": Function(2, 8, _unless),
    "equal": Function(2, 2, lambda of: bool(of.value(0) == of.value(1))),
    "not": Function(1, 1, lambda of: is_false(of.value(0))),
    "every": Function(3, 4, _every),
    "flags": Function(4, 4, _flags),
    "after": Function(3, 3, _after),
    "letters": Function(5, 9, _letters),
    "sparse": Function(4, 4, _sparse),
    "between": Function(5, 5, _between),
    "among": Function(4, 5, _among),
    "cross": Function(2, 4, _cross),
    "of_type": Function(4, 4, _of_type),
    "field_of_type": Function(4, 4, _field_of_type),
    "tail": Function(5, 9, _tail),
    "begins": Function(3, 3, _begins),
    "rows": Function(1, 1, lambda of: of.rows(of.value(0))),
    "ends_in_one": Function(1, 1, lambda of: of.ends_in_one(of.value(0))),
    "has_all": Function(3, 3, lambda of: of.has_all(of.value(0), of.layers(1) or [], of.value(2))),
    "field": Function(3, 3, _field),
    "item": Function(3, 3, _item),
    "length": Function(2, 4, _length),
    "bounded": Function(3, 3, _bounded),
    "where": Function(3, 3, _where),
    "given": Function(1, 8, lambda of: any(of.key(index) is not None for index in range(len(of)))),
    "rope": Function(2, 4, _rope),
    "score_scale": Function(1, 2, _score_scale),
}
