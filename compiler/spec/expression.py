"""The language in which families say what keys of config.json or of GGUF metadata mean.

An expression is plain data. The importers evaluate it; this module says what it may look like:

    name                                  the value of a key
    3, 1.5, true, null                    itself; null leaves the property as specs have it by default
    {is: silu}                            text itself; {is: null}: null, where a spec means something by it
    {key: K, default: X, choices: {A: B}} a key, else X; translated
    {key: K, absent: X, default: Y}       likewise, where a file that lacks the key means another thing than null
    {has: attention.q_bias}               whether the file has such a tensor
    {if: X, then: Y, else: Z}             Y, or Z where X is null, false or 0
    {call: F, of: [X, ...]}               one of `functions.FUNCTIONS`

A key of config.json may lead into a section by a dot. Where a key, or what a choice or a function makes of it, is null,
the property is left out. A list for each layer with equal items is that item, except where layers are asked for.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from mlxr.compiler.spec.fields import CONTRADICTION
from mlxr.compiler.spec.functions import FUNCTIONS

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
        _check_call(expression["call"], expression["of"])
    for key in ("default", "absent", "if", "then", "else", "of"):
        _checked(expression.get(key))
    return expression


def _check_call(name: Any, of: Any) -> None:
    function = FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None:
        raise _refuse(f'"{name}" is not a function; functions are {", ".join(FUNCTIONS)}')
    if not isinstance(of, list) or not function.fewest <= len(of) <= function.most:
        raise _refuse(f"{name} takes from {function.fewest} to {function.most} values in a list")


Expression = Annotated[Any, AfterValidator(_checked), WithJsonSchema({"description": "an expression"})]
