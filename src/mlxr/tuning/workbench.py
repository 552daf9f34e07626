"""What all searches of the tuner share."""

from collections.abc import Callable
from dataclasses import dataclass

from mlxr.tuning.candidates import Candidates
from mlxr.tuning.measure import Measurement
from mlxr.tuning.site_tuning import SiteTuning
from mlxr.tuning.trial_artifacts import TrialArtifacts


@dataclass(frozen=True)
class Workbench:
    """What all searches of the tuner share.

    Attributes:
        artifacts: compiles candidates, and keeps what was chosen.
        measurement: times them.
        candidates: what to try of each size.
        device: what the GPU calls itself, for the reasons.
        tell: told of progress.
    """

    artifacts: TrialArtifacts
    measurement: Measurement
    candidates: Candidates
    device: str
    tell: Callable[[str], None]

    def forget(self, tuning: SiteTuning) -> None:
        """Goes back to what the artifact had, where the winner does not win again."""
        self.tell(f"{tuning.site}: not clearly faster when timed again, stays as it is")
        tuning.best, tuning.because = tuning.before, ""
