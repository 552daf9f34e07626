"""The tools that all searches of the tuner share."""

from collections.abc import Callable
from dataclasses import dataclass

from mlxr.tuning.candidates import Candidates
from mlxr.tuning.measure import Measurement
from mlxr.tuning.site_tuning import SiteTuning
from mlxr.tuning.trial_artifacts import TrialArtifacts


@dataclass(frozen=True)
class Workbench:
    """The tools that all searches of the tuner share.

    Attributes:
        artifacts: compiles candidates, and keeps the sizes chosen so far.
        measurement: times the candidates.
        candidates: the values to try of each size.
        device: the GPU's name, which the recorded reasons give.
        tell: called with a line of progress.
    """

    artifacts: TrialArtifacts
    measurement: Measurement
    candidates: Candidates
    device: str
    tell: Callable[[str], None]

    def forget(self, tuning: SiteTuning) -> None:
        """Restores the sizes that the artifact had: the winner did not win when it was timed again."""
        self.tell(f"{tuning.site}: not clearly faster when timed again, stays as it is")
        tuning.best, tuning.because = tuning.before, ""
