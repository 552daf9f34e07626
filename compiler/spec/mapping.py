"""The language in which family files say what keys of config.json or of GGUF metadata mean.

An expression is plain data. It is read by the importers; here is only what it may look like:

    name                                  the value of a key
    3, 1.5, true, null                    itself; null leaves the property as specs have it by default
    {is: silu}                            text itself; {is: null}: null, where a spec means something by it
    {key: K, default: X, choices: {A: B}} a key, else X; translated
    {key: K, absent: X, default: Y}       likewise, where a file that lacks the key means another thing than null
    {has: attention.q_bias}               whether the file has such a tensor
    {if: X, then: Y, else: Z}             Y, or Z where X is null, false or 0
    {call: F, of: [X, ...]}               one of FUNCTIONS; the importers say what each does

A key of config.json may lead into a section by a dot. Where a key, or what a choice or a function makes of it, is null,
the property is left out. A list for each layer with equal items is that item, except where layers are asked for.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from mlxr.compiler.spec.fields import CONTRADICTION, Contradictions, Frozen

FUNCTIONS: dict[str, tuple[int, int]] = {
    "divide": (2, 2),
    "multiply": (2, 8),
    "sqrt": (1, 1),
    "inverse": (1, 1),
    "inverse_sqrt": (1, 1),
    "unless": (2, 8),
    "equal": (2, 2),
    "not": (1, 1),
    "every": (3, 3),
    "after": (3, 3),
    "letters": (3, 9),
    "sparse": (4, 4),
    "rope": (2, 3),
}
"""Functions by name, with the fewest and the most arguments that they take."""
_FORMS = (
    {"is"},
    {"key", "default", "absent", "choices"},
    {"has"},
    {"if", "then", "else"},
    {"call", "of"},
)
_NEEDED = {"key": {"key"}, "if": {"if", "then", "else"}, "call": {"call", "of"}, "is": {"is"}, "has": {"has"}}


def _refuse(text: str) -> PydanticCustomError:
    return PydanticCustomError(CONTRADICTION, "{text}", {"text": text, "found": (("", text, ""),)})


def _checked(expression: Any) -> Any:
    if isinstance(expression, list):
        for item in expression:
            _checked(item)
    if not isinstance(expression, dict):
        return expression
    keys = set(expression)
    form = next((form for form in _FORMS if keys <= form and keys & _NEEDED.keys()), None)
    leader = next((key for key in _NEEDED if key in keys), "")
    if form is None or not _NEEDED[leader] <= keys:
        raise _refuse(f"{sorted(keys)} is not an expression; one has is, has, key, if/then/else or call/of")
    if leader == "call":
        bounds = FUNCTIONS.get(expression["call"])
        if bounds is None:
            raise _refuse(f'"{expression["call"]}" is not a function; functions are {", ".join(FUNCTIONS)}')
        if not isinstance(expression["of"], list) or not bounds[0] <= len(expression["of"]) <= bounds[1]:
            raise _refuse(f"{expression['call']} takes from {bounds[0]} to {bounds[1]} values in a list")
    for key in ("default", "absent", "if", "then", "else", "of"):
        _checked(expression.get(key))
    return expression


Expression = Annotated[Any, AfterValidator(_checked), WithJsonSchema({"description": "an expression"})]


class Mapped(Frozen):
    """What one kind of file says of a model."""

    names: tuple[str, ...] = ()
    """What it calls the architecture."""
    only_with: str | None = None
    """A key without which the file is of another family that goes by the same name."""
    set: dict[str, Expression] = Field(default_factory=dict)
    """Properties of the spec's model section, by dotted paths, to where they are found."""
    must_equal: dict[str, Expression] = Field(default_factory=dict)
    """Keys that say again what something else says, and must not contradict it; both are left alone if absent."""
    harmless: tuple[str, ...] = ()
    """Regular expressions for whole keys that change nothing."""
    neutral: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Keys, and the values with which they change nothing."""

    @model_validator(mode="after")
    def _check(self) -> "Mapped":
        wrong = Contradictions()
        for pattern in self.harmless:
            try:
                re.compile(pattern)
            except re.error as error:
                wrong.add("harmless", f'"{pattern}" is not a regular expression: {error}')
        wrong.refuse()
        return self

    def over(self, base: "Mapped") -> "Mapped":
        """This with all that it leaves out as `base` has it; names are its own."""
        return Mapped(
            names=self.names,
            only_with=self.only_with,
            set=base.set | self.set,
            must_equal=base.must_equal | self.must_equal,
            harmless=(*base.harmless, *self.harmless),
            neutral=base.neutral | self.neutral,
        )


NOTHING_SAID = Mapped()
