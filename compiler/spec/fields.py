"""Field types shared by the sections of a spec.

Integers and flags are strict (no "8" for 8, no 1 for true), so that a spec means what it says. A check that spans
several fields collects what it finds in `Contradictions`, which names the key that each finding is about.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from mlxr.compiler.formats.weight_format import WeightFormat

INT32_MAX = 2**31 - 1
MAX_LAYERS = 1024
CONTRADICTION = "contradiction"

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = r"^[ \t]*([0-9]{1,15}(?:\.[0-9]{1,15})?)[ \t]*([bB]|[kKmMgG][iI]?[bB])?[ \t]*$"
"""For the loader, and for editors by the schema: without \\s and \\d, which differ between JavaScript and Python."""


def parse_size(value: Any) -> Any:
    """The bytes that a size such as `4GiB` stands for; what is not a size stays what it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)  # YAML reads 1e9 as a float; to JSON Schema it is an integer
    if not isinstance(value, str):
        return value
    match = re.fullmatch(_SIZE, value)
    if match is None:
        return value  # still text, so refused as no whole number
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def _known_format(name: str) -> str:
    if name in list(WeightFormat):
        return name
    raise PydanticCustomError("literal_error", "is not a weight format")  # shown with the names of the schema


Count = Annotated[int, Field(ge=1, le=INT32_MAX, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
AUTO = "auto"
"""What a spec says of a type that is chosen for each target."""
FloatType = Literal["f32", "f16", "bf16"]
ActivationType = Literal["f32", "f16", "bf16", "auto"]
Output = Literal["logits", "hidden", "guesses"]
"""What a step gives."""
CacheType = Literal["f32", "f16", "bf16", "q8", "q4", "auto"]
FormatName = Annotated[
    str, AfterValidator(_known_format), WithJsonSchema({"type": "string", "enum": [str(name) for name in WeightFormat]})
]
_SIZE_SCHEMA: dict[str, Any] = {
    "type": ["integer", "string"],
    "minimum": 1,
    "maximum": 2**60,
    "pattern": _SIZE,
}
Positive = Annotated[float, Field(gt=0, le=1e6, strict=True)]
Epsilon = Annotated[float, Field(ge=1e-20, lt=1, strict=True)]
SizeBytes = Annotated[
    int, Field(ge=1, le=2**60, strict=True), BeforeValidator(parse_size), WithJsonSchema(_SIZE_SCHEMA)
]
ONE_SIZE, SIZES = "<size>", "<sizes>"
"""What pydantic's errors call the two kinds of `SizeOrSizes`."""
SizeOrSizes = Annotated[
    Annotated[SizeBytes, Tag(ONE_SIZE)] | Annotated[tuple[SizeBytes, ...], Field(min_length=1), Tag(SIZES)],
    Discriminator(lambda value: SIZES if isinstance(value, list | tuple) else ONE_SIZE),
    WithJsonSchema(_SIZE_SCHEMA | {"type": [*_SIZE_SCHEMA["type"], "array"], "items": _SIZE_SCHEMA, "minItems": 1}),
]
"""A size, or a list with one for each rank."""


class Contradictions:
    """What a check across several fields found wrong; all of it is refused in one error."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str, str]] = []

    def add(self, at: str, text: str, fix: str = "") -> None:
        """Notes one finding.

        Args:
            at: Dotted path of the key to point at, relative to the section that checks.
            text: What is wrong, as a sentence without the path.
            fix: What to do about it, if that is not obvious.
        """
        self._found.append((at, text, fix))

    def check_multiple(self, at: str, value: int, of: int, why: str = "") -> None:
        """Notes a number that is not a multiple of another one; `at` as of `add`, and `why` it has to be."""
        if value % of:
            low, key = value // of * of, at.rpartition(".")[2]
            reason = f"; {why}" if why else ""
            self.add(at, f"{key} {value} is not a multiple of {of}{reason}", f"nearest are {low} and {low + of}")

    def refuse(self) -> None:
        """Raises one error for all findings, if there are any."""
        if self._found:
            text = "; ".join(text for _, text, _ in self._found)
            raise PydanticCustomError(CONTRADICTION, "{text}", {"text": text, "found": tuple(self._found)})
