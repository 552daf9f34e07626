"""Predicted times of a decode step and of a chunk of a prompt, as `mlxr inspect --chip` predicts them."""

from mlxr.compiler.artifact import Artifact, Chip
from mlxr.compiler.spec.record import Record
from mlxr.inspect.roofline import StepRoofline, roofline


class StepPrediction(Record):
    """A step as a roofline predicts it."""

    about: str
    tokens: int
    launches: int
    size_bytes: int
    flops: int
    limit_us: float
    predicted_us: float


class StepTimeDiff(Record):
    """The predictions of a step for A and for B."""

    step: str
    a: StepPrediction
    b: StepPrediction


class TimeDiff(Record):
    """Predicted times on a chip; `steps` is empty if nothing can be predicted, and `because` says why."""

    chip: str
    because: str = ""
    steps: tuple[StepTimeDiff, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether any of them differ."""
        return any(step.a != step.b for step in self.steps)


def time_diff(a: Artifact, b: Artifact, chip: Chip, context: int, batch: int) -> TimeDiff:
    """Compares predictions.

    Args:
        a: the first artifact.
        b: the second artifact.
        chip: where both run.
        context: tokens of each sequence in the decode step.
        batch: sequences in the decode step.

    Raises:
        RequestError: a batch that one of the artifacts is not for.
    """
    if chip.figures is None:
        return TimeDiff(chip=chip.title, because="name a chip with --chip, such as m4-max or h200")
    if not all("metal" in artifact.plan.targets for artifact in (a, b)):
        return TimeDiff(chip=chip.title, because="only programs of target metal have predictions, for GPUs")
    steps = zip(roofline(a, chip, context, batch), roofline(b, chip, context, batch), strict=True)
    return TimeDiff(
        chip=chip.title,
        steps=tuple(StepTimeDiff(step=ours.name, a=_prediction(ours), b=_prediction(theirs)) for ours, theirs in steps),
    )


def _prediction(step: StepRoofline) -> StepPrediction:
    work = step.work
    return StepPrediction(
        about=step.about,
        tokens=step.tokens,
        launches=len(step.launches),
        size_bytes=work.size_bytes,
        flops=work.flops,
        limit_us=step.limit_us,
        predicted_us=step.predicted_us,
    )
