"""Which blocks layers have, and the sections of a spec that say what these are."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

from mlxr.compiler.spec.record import Record

Block = Literal["attention", "recurrent", "mlp"]
"""A block of a layer, by its section."""
Blocks = Annotated[tuple[Block, ...], Field(min_length=1, max_length=3)]
"""The blocks of a layer, in order."""
USUAL_BLOCKS: Blocks = ("attention", "mlp")
"""Those of a layer whose spec does not name them."""
SECTIONS: tuple[Block, ...] = get_args(Block)
"""The sections that say what blocks are."""
_MISSING = object()
"""In place of a section that the spec leaves out and that its blocks need."""


def needed_sections(blocks: Any) -> dict[str, Any]:
    """For the sections of these blocks: what `IsGiven` refuses; empty where `blocks`, not validated yet, is no list."""
    return {block: _MISSING for block in blocks if block in SECTIONS} if isinstance(blocks, list | tuple) else {}


def _given(value: Any) -> Any:
    if value is _MISSING:
        raise PydanticKnownError("missing")
    return value


IsGiven = BeforeValidator(_given)
"""Of a section that may be left out, unless a block needs it."""


def filled_type(base: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """A layer type with the model's properties filled in, but not those of blocks that it does not have."""
    filled = {key: _merged(base.get(key), given.get(key, base.get(key))) for key in {**base, **given}}
    blocks = filled.get("blocks")
    if isinstance(blocks, list | tuple):
        absent = [block for block in SECTIONS if block not in blocks and block not in given]
        filled |= dict.fromkeys(absent)
        filled |= {"rope": None} if "attention" not in blocks and "rope" not in given else {}
    return filled


def _merged(base: Record | None, given: Any) -> Any:
    """A section of a layer type: the keys given, and the model's for others unless its kind is another."""
    if not isinstance(given, dict) or not isinstance(base, Record):
        return given
    if given.get("kind", getattr(base, "kind", None)) != getattr(base, "kind", None):
        return given
    return {**{name: getattr(base, name) for name in type(base).model_fields}, **given}
