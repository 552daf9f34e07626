"""The tools that all searches of the tuner share."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact import Artifact, Chip
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.spec.change import with_block_size
from mlxr.tuning.candidates import Candidates
from mlxr.tuning.measure import LaunchTimer
from mlxr.tuning.site_tuning import SiteTuning, Sizes

EVERYWHERE = "all quantised weights"
"""The site of a rule for all launches."""


class TrialArtifacts:
    """Artifacts of one spec that differ in geometry alone, each compiled once."""

    def __init__(self, artifact: Artifact, chip: Chip) -> None:
        """Prepares.

        Args:
            artifact: the one whose spec is compiled.
            chip: its rules come before those of the candidates.
        """
        self._spec, self._targets, self._chip = artifact.spec, artifact.plan.targets, chip
        self._kept: dict[str, Sizes] = {}
        self._compiled: dict[str, Artifact] = {}

    def keep(self, tuning: SiteTuning) -> None:
        """Keeps the sizes chosen for a site: artifacts compiled from now on have them."""
        self._kept[tuning.site] = self._kept.get(tuning.site, {}) | tuning.changed

    def compiled(self, sizes: Mapping[str, Sizes] | None = None) -> Artifact:
        """The spec, for GPUs alone, with what was kept so far and these sizes of these sites.

        Raises:
            PlanError: there are no kernels of these sizes.
        """
        wanted = sizes or {}
        both = {site: self._kept.get(site, {}) | wanted.get(site, {}) for site in {**self._kept, **wanted}}
        rules = tuple(_rule(site, values, "a candidate") for site, values in sorted(both.items()) if values)
        key = json.dumps([rule.model_dump() for rule in rules])
        if key not in self._compiled:
            self._compiled[key] = self._with_rules(rules, ("metal",))
        return self._compiled[key]

    def with_blocks(self, size: int) -> Artifact:
        """As `compiled`, with blocks of the cache of so many tokens.

        Raises:
            MlxrError: there are no kernels for such blocks, or no room.
        """
        if size == self._spec.cache.block_size:
            return self.compiled()
        return compile_spec(with_block_size(self._spec, size), targets=("metal",), chip=self.compiled().chip).artifact

    def keep_blocks(self, size: int) -> None:
        """Blocks of the cache have so many tokens from now on."""
        self._spec = with_block_size(self._spec, size)
        self._compiled.clear()

    def final(self, tunings: Sequence[SiteTuning]) -> Artifact:
        """The spec for all targets of the artifact, with a rule for each site that changed."""
        rules = [_rule(tuning.site, tuning.changed, tuning.because) for tuning in tunings if tuning.changed]
        return self._with_rules(rules, self._targets)

    def _with_rules(self, rules: Sequence[GeometryRule], targets: Sequence[str]) -> Artifact:
        chip = self._chip.model_copy(update={"geometry": (*self._chip.geometry, *rules)})
        return compile_spec(self._spec, targets=targets, chip=chip).artifact


def _rule(site: str, sizes: Sizes, because: str) -> GeometryRule:
    sites = () if site == EVERYWHERE else (site,)
    return GeometryRule(sizes=sizes, because=because, origin="measured", sites=sites)


@dataclass(frozen=True)
class Workbench:
    """The tools that all searches of the tuner share.

    Attributes:
        artifacts: compiles candidates, and keeps the sizes chosen so far.
        timer: times the candidates.
        candidates: the values to try of each size.
        device: the GPU's name, which the recorded reasons give.
        tell: called with a line of progress.
    """

    artifacts: TrialArtifacts
    timer: LaunchTimer
    candidates: Candidates
    device: str
    tell: Callable[[str], None]

    def forget(self, tuning: SiteTuning) -> None:
        """Restores the sizes that the artifact had: the winner did not win when it was timed again."""
        self.tell(f"{tuning.site}: not clearly faster when timed again, stays as it is")
        tuning.best, tuning.because = tuning.before, ""
