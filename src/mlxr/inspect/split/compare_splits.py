"""Other splits of the same model over as many ranks, and one machine without a split: which is fastest, and why not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mlxr.compiler.artifact import Artifact, Chip
from mlxr.compiler.chips.link import Link
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import MlxrError
from mlxr.compiler.spec.load import dump_spec, parse_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.parallel import Parallel
from mlxr.compiler.text import size
from mlxr.inspect.roofline import TARGET
from mlxr.inspect.split.predict_split import SplitTimes, predict_split, rate_text
from mlxr.inspect.split.ranks_report import split_of


@dataclass(frozen=True)
class SplitComparison:
    """Predicted times of splits over the same link.

    Attributes:
        artifact: whose split is compared with others.
        link, chip: what was assumed.
        own: the artifact's.
        single: one machine that has the whole model.
        single_budget_bytes: the memory of the largest machine, if the spec says it.
        others: other splits over as many ranks.
        impossible: why there is no such split, by its name.
    """

    artifact: Artifact
    link: Link
    chip: Chip
    own: SplitTimes
    single: SplitTimes
    single_budget_bytes: int | None
    others: tuple[SplitTimes, ...]
    impossible: Mapping[str, str]

    @property
    def fits_one(self) -> bool:
        """Whether one machine can hold the model, as far as the spec says how large it is."""
        return self.single_budget_bytes is None or self.single.memory_bytes[0] <= self.single_budget_bytes

    @property
    def all(self) -> tuple[SplitTimes, ...]:
        """One machine, the artifact's split, and the others."""
        return (self.single, self.own, *self.others)

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Whether splitting pays, and which split is best, for people."""
        lines = []
        rates: dict[str, Callable[[SplitTimes], float]] = {
            "decode": lambda times: times.decode_rate,
            "prefill": lambda times: times.prefill_rate,
        }
        for what, rate in rates.items():
            best = max((self.own, *self.others), key=rate)
            gain = rate(self.own) / rate(self.single)
            pays = "pays" if gain > 1 else "does not pay"
            lines.append(
                f"{what}: {self.own.name} {pays}, {gain:.2f} x one machine; best split: {best.name}, "
                f"{rate(best) / rate(self.single):.2f} x"
            )
        if not self.fits_one:
            assert self.single_budget_bytes is not None
            lines.append(
                f"one machine would need {size(self.single.memory_bytes[0])}, more than its budget of "
                f"{size(self.single_budget_bytes)}: there is no choice but to split"
            )
        return tuple(lines)


def compare_splits(
    artifact: Artifact, link: Link, chip: Chip, context: int, batch: int, prompt: int | None = None
) -> SplitComparison:
    """Predicts an artifact's split, other splits over as many ranks, and one machine; they are compiled for this.

    Args and errors: see `predict_split`.
    """
    split, spec = split_of(artifact), artifact.spec
    own = predict_split(artifact, link, chip, context, batch, prompt)
    whole = _compiled(artifact, {"parallel": None, "memory_budget": None})
    single = predict_split(whole, None, chip, context, batch, prompt)
    others, impossible = [], {}
    for tensor, pipeline in _splits(split.size):
        if (tensor, pipeline) == (split.tensor, split.pipeline):
            continue
        try:
            other = _compiled(artifact, {"parallel": Parallel(tensor=tensor, pipeline=pipeline)})
        except MlxrError as error:
            impossible[f"tensor {tensor} x pipeline {pipeline}"] = str(error)
            continue
        others.append(predict_split(other, link, chip, context, batch, prompt))
    return SplitComparison(
        artifact, link, chip, own, single, _largest_budget(spec, split.size), tuple(others), impossible
    )


def predicted_slower(artifact: Artifact, link: Link, chip: Chip, context: int = 512) -> str | None:
    """Why a model that is split is slower than on one machine, for a warning; None: it is not, or nobody knows.

    Nothing is compiled: one machine is assumed to do the work of all ranks.

    Args:
        artifact: of the model.
        link: between its ranks.
        chip: of each.
        context: tokens of the sequence in a decode step.
    """
    if artifact.parallel is None or chip.figures is None or TARGET not in artifact.of_rank(0).plan.targets:
        return None
    spec, plan = artifact.spec, artifact.of_rank(0).plan
    own = predict_split(artifact, link, chip, min(context, plan.arena.context), 1, 1)
    single = own.on_one_machine()
    budget = _largest_budget(spec, split_of(artifact).size)
    if own.decode_us <= single.decode_us or (budget is not None and single.memory_bytes[0] > budget):
        return None
    messages_us = sum(max(time.messages_us for time in own.decode[s : s + own.tensor]) for s in _firsts(own))
    rates = [rate_text(times.decode_rate) for times in (own, single)]
    return (
        f"{spec.name} by {own.name} over {link.title} is predicted to decode {rates[0]} tokens/s, and one "
        f"{chip.title} alone {rates[1]}: its messages take {messages_us / 1e3:.3g} ms of a step's "
        f"{own.decode_us / 1e3:.3g} ms"
    )


def _firsts(times: SplitTimes) -> range:
    """The first rank of each stage."""
    return range(0, times.tensor * times.pipeline, times.tensor)


def _splits(ranks: int) -> list[tuple[int, int]]:
    """Tensor ranks and stages: all of the one, all of the other, and two stages."""
    mixed = [(ranks // 2, 2)] if ranks % 2 == 0 and ranks > 2 else []
    return [(ranks, 1), (1, ranks), *mixed]


def _compiled(artifact: Artifact, changes: Mapping[str, object]) -> Artifact:
    spec = artifact.spec
    spec = parse_spec(dump_spec(spec.model_copy(update=dict(changes))), f"{spec.name}, split in another way")
    return compile_spec(spec, targets=(TARGET,), chip=artifact.chip).artifact


def _largest_budget(spec: ModelSpec, ranks: int) -> int | None:
    budgets = [budget for rank in range(ranks) if (budget := spec.budget_of(rank)) is not None]
    return max(budgets, default=None)
