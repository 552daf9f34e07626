"""Chooses the geometry of each launch: rules match launches and set sizes, and every size keeps its reason."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.size_record import SizeRecord

_SIZES = Geometry.names()


@dataclass(frozen=True)
class Choice:
    """The geometry of one site, with the reasons."""

    site: Site
    geometry: Geometry
    why: Mapping[str, str]

    @cached_property
    def _flat(self) -> Mapping[str, int]:
        return self.geometry.flat()

    def sizes(self, *used: type[SizeRecord] | str, without: Collection[str] = ()) -> ChosenGeometry:
        """The sizes that a kernel depends on, to be recorded with it.

        Args:
            used: records, all of whose sizes count, or flat names of single sizes.
            without: flat names of sizes that have no effect on this kernel.
        """
        names: set[str] = set()
        for entry in used:
            names.update((entry,) if isinstance(entry, str) else entry.names())
        assert names <= set(_SIZES), f"the geometry has no {', '.join(sorted(names - set(_SIZES)))}"
        sizes = {name: value for name, value in self._flat.items() if name in names and name not in without}
        why = {name: self.why[name] for name in sizes if name in self.why}
        return ChosenGeometry(site=str(self.site), sizes=sizes, why=why)


@dataclass(frozen=True)
class GeometryTable:
    """The geometry of every launch: `base`, changed by each matching rule in order, so that later rules win."""

    base: Geometry = field(default_factory=Geometry)
    rules: tuple[GeometryRule, ...] = ()
    _choices: dict[Site, Choice] = field(default_factory=dict, init=False, repr=False, compare=False)

    def choose(self, site: Site) -> Choice:
        """The geometry of a site. It is computed once, because all layers ask for the same sites.

        Raises:
            PlanError: the rules together set sizes that no kernel supports.
        """
        if site not in self._choices:
            sizes: dict[str, int] = {}
            why: dict[str, str] = {}
            for rule in self.rules:
                if rule.holds(site):
                    sizes |= rule.sizes
                    why |= dict.fromkeys(rule.sizes, f"{rule.because} ({rule.origin})")
            self._choices[site] = Choice(site, self.base.changed(sizes), why)
        return self._choices[site]
