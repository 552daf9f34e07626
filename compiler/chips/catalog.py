"""The known chips, by name and by the name that a device reports, and the schema of the files that have them."""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from mlxr.compiler.artifact.chip import Chip, ChipFigures, HalfType
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.spec.document import read_document
from mlxr.compiler.spec.explain import nearest, validated
from mlxr.compiler.spec.fields import Contradictions
from mlxr.compiler.spec.record import Record

GENERIC = "generic"
"""The chip about which nothing is assumed."""
_SIZES = Geometry.names()


def _known_sizes(rule: GeometryRule) -> GeometryRule:
    """The rule itself, if the geometry has all the sizes that the rule sets; a validator for pydantic.

    Raises:
        PydanticCustomError: the rule names unknown sizes; the message lists them.
    """
    wrong = Contradictions()
    for name in rule.sizes:
        if name not in _SIZES:
            wrong.add("sizes", f'"{name}" is not a size of the geometry', f"sizes are {', '.join(_SIZES)}")
    wrong.refuse()
    return rule


CheckedRule = Annotated[GeometryRule, AfterValidator(_known_sizes)]
"""A rule that names only sizes of the geometry."""


class ChipEntry(Record):
    """One chip in a file."""

    title: str
    """Its name for people."""
    device: str = ""
    """The beginning of the name that the device reports, in lower case; empty: several chips report the same name."""
    figures: ChipFigures | None = None
    """Its speed; null if nothing is assumed."""
    half: HalfType | None = None
    """The 16-bit type that it prefers; null: no preference."""
    memory_gib: tuple[Annotated[int, Field(gt=0)], ...] = ()
    """How much memory machines with it are sold with, ascending, as published; empty: not known."""
    geometry: tuple[CheckedRule, ...] = ()
    """Its own rules, which come after the file's."""


class ChipFile(Record):
    """Chips of one family."""

    about: str
    """What the chips share, and where their figures are from."""
    base: str = ""
    """The file of ours, without its ending, whose rules come before these; empty: there is none."""
    geometry: tuple[CheckedRule, ...] = ()
    """Rules for all of the file's chips."""
    chips: Annotated[dict[str, ChipEntry], Field(min_length=1)]
    """The chips by their names in commands."""


def find_chip(name: str) -> Chip:
    """A chip by its name.

    Raises:
        PlanError: no chip has that name; the message lists the known ones.
    """
    # Most compile for the generic one, which the first file has.
    found = next((chips[name] for path in _paths() if name in (chips := _chips_in(path))), None)
    if found is None:
        chips = known_chips()
        like = nearest(name, tuple(chips))
        hint = f'; did you mean "{like}"?' if like else ""
        raise PlanError(f"there is no chip {name!r}; known chips are {', '.join(chips)}{hint}")
    return found


def find_chip_of_device(device: str) -> Chip | None:
    """The chip of a device by the name that it reports (`NVIDIA H200`, `Apple M3 Max`); None if it is not known."""
    chips = known_chips().values()
    matching = [chip for chip in chips if chip.device and f"{device} ".lower().startswith(f"{chip.device} ")]
    return max(matching, key=lambda chip: len(chip.device), default=None)


def known_chips() -> dict[str, Chip]:
    """Every chip by name: the generic one first, the others in the order of their files."""
    return {name: chip for path in _paths() for name, chip in _chips_in(path).items()}


def memory_of_chip(name: str) -> tuple[int, ...]:
    """How many GiB of memory machines with a known chip are sold with, ascending; empty: not known."""
    files = (_file(path.read_text(encoding="utf-8"), str(path), is_ours=True) for path in _paths())
    return next((file.chips[name].memory_gib for file in files if name in file.chips), ())


def _paths() -> list[Path]:
    folder = Path(str(resources.files("mlxr.compiler.chips")))
    return sorted(folder.glob("*.yaml"), key=lambda path: (path.stem != GENERIC, path.stem))


@cache
def _chips_in(path: Path) -> dict[str, Chip]:
    return chips_of(path.read_text(encoding="utf-8"), str(path), is_ours=True)


def chips_of(text: str, source: str, *, is_ours: bool = False) -> dict[str, Chip]:
    """The chips in a file.

    Args:
        text: the YAML.
        source: the file's name in error messages.
        is_ours: see `read_document`.

    Raises:
        SpecError: the file does not describe chips; the message shows every problem with its place.
        PlanError: the file whose rules come before is not there.
    """
    file = _file(text, source, is_ours=is_ours)
    rules = (*_rules_of(file.base), *file.geometry)
    return {
        name: Chip(
            name=name,
            title=entry.title,
            device=entry.device,
            figures=entry.figures,
            half=entry.half,
            geometry=(*rules, *entry.geometry),
        )
        for name, entry in file.chips.items()
    }


def _rules_of(base: str) -> tuple[GeometryRule, ...]:
    """The rules of a file of ours; empty: of none.

    Raises:
        PlanError: there is no such file.
    """
    if not base:
        return ()
    found = [path for path in _paths() if path.stem == base]
    if not found:
        raise PlanError(f"base: there is no file of chips {base!r}; there are {', '.join(p.stem for p in _paths())}")
    return _file(found[0].read_text(encoding="utf-8"), str(found[0]), is_ours=True).geometry


def _file(text: str, source: str, *, is_ours: bool) -> ChipFile:
    return validated(ChipFile, read_document(text, source, is_ours=is_ours))
