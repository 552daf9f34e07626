"""Chooses the geometry of each launch: rules match launches and set numbers, and every number keeps its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.spec.fields import Contradictions

_SIZES = tuple(size.name for size in fields(Geometry))


def known_sizes(rule: GeometryRule) -> GeometryRule:
    """The rule itself, if the geometry has all the sizes that it gives; for pydantic.

    Raises:
        PydanticCustomError: naming the sizes that there are not.
    """
    wrong = Contradictions()
    for name in rule.sizes:
        if name not in _SIZES:
            wrong.add("sizes", f'"{name}" is not a size of the geometry', f"sizes are {', '.join(_SIZES)}")
    wrong.refuse()
    return rule


@dataclass(frozen=True)
class Choice:
    """The geometry of one site, and why."""

    site: Site
    geometry: Geometry
    why: Mapping[str, str]

    def part(self, *prefixes: str) -> ChosenGeometry:
        """The sizes whose names begin with one of the prefixes, such as `matvec_`."""
        names = [name for name in _SIZES if name.startswith(prefixes)]
        return ChosenGeometry(
            site=str(self.site),
            sizes={name: getattr(self.geometry, name) for name in names},
            why={name: self.why[name] for name in names if name in self.why},
        )


@dataclass(frozen=True)
class GeometryTable:
    """The geometry of every launch: `base`, changed by each rule that holds, in order, so that later ones win."""

    base: Geometry = field(default_factory=Geometry)
    rules: tuple[GeometryRule, ...] = ()

    def choose(self, site: Site) -> Choice:
        """The geometry of a site.

        Raises:
            PlanError: the rules together give sizes that no kernel is made for.
        """
        sizes: dict[str, int] = {}
        why: dict[str, str] = {}
        for rule in self.rules:
            if rule.holds(site):
                sizes |= rule.sizes
                why |= dict.fromkeys(rule.sizes, f"{rule.because} ({rule.origin})")
        return Choice(site, replace(self.base, **sizes), why)
