"""How long the steps of a model take on each of its ranks, and together; on one machine, too.

The ranks of a stage wait for each other at every sum, so that the slowest one's compute counts. A token of a sequence
passes through all stages, one after another. Chunks of a prompt follow each other: a stage computes one while the stage
before it computes the next.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mlxr.compiler.artifact import Artifact, BatchDim, Chip
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.artifact.typical_steps import decode_dims
from mlxr.compiler.chips.link import Link
from mlxr.compiler.errors import RequestError
from mlxr.inspect.launches import phase_rows
from mlxr.inspect.roofline import TARGET, check_batch, limits_of
from mlxr.inspect.split.message_time import MessageTimes
from mlxr.inspect.split.ranks_report import rows_of, split_of

USUAL_PROMPT = 4096
"""Tokens of the prompt that is predicted, if the artifact holds so many."""


@dataclass(frozen=True)
class RankTime:
    """The time of a rank in a step, or in several.

    Attributes:
        limit_us: what memory and arithmetic take.
        launches_us: what the launches themselves cost.
        messages_us: what the exchanges with other ranks take, once all of them are there.
    """

    limit_us: float
    launches_us: float
    messages_us: float

    @property
    def compute_us(self) -> float:
        """All but messages."""
        return self.limit_us + self.launches_us

    @property
    def total_us(self) -> float:
        """All together."""
        return self.compute_us + self.messages_us


@dataclass(frozen=True)
class SplitTimes:
    """Predicted times of a model on its ranks.

    Attributes:
        tensor: ranks of a stage.
        pipeline: stages.
        memory_bytes: what each rank needs.
        batch: sequences of a decode step.
        decode: of each rank, the step.
        prompt: tokens of the prompt.
        chunks: of each chunk of the prompt, each rank's time.
    """

    tensor: int
    pipeline: int
    memory_bytes: tuple[int, ...]
    batch: int
    decode: tuple[RankTime, ...]
    prompt: int
    chunks: tuple[tuple[RankTime, ...], ...]

    @property
    def name(self) -> str:
        """The split for people."""
        if self.tensor * self.pipeline == 1:
            return "one machine"
        parts = [f"{kind} {ranks}" for kind, ranks in (("tensor", self.tensor), ("pipeline", self.pipeline))]
        return " x ".join(part for part in parts if not part.endswith(" 1"))

    @property
    def decode_us(self) -> float:
        """A decode step, through all stages."""
        return sum(self._stages(self.decode))

    @property
    def slowest_stage_us(self) -> float:
        """The slowest stage of a decode step: with as many batches under way as stages, a step ends as often."""
        return max(self._stages(self.decode))

    @cached_property
    def prefill_us(self) -> float:
        """The whole prompt."""
        finished = [0.0] * self.pipeline
        for chunk in self.chunks:
            before = 0.0
            for stage, time in enumerate(self._stages(chunk)):
                before = finished[stage] = max(before, finished[stage]) + time
        return finished[-1]

    @property
    def decode_rate(self) -> float:
        """Tokens a second of all sequences."""
        return 1e6 * self.batch / self.decode_us

    @property
    def busy_rate(self) -> float:
        """As `decode_rate`, if every stage always had a batch."""
        return 1e6 * self.batch / self.slowest_stage_us

    @property
    def prefill_rate(self) -> float:
        """Tokens of the prompt a second."""
        return 1e6 * self.prompt / self.prefill_us

    def of_prompt(self, rank: int) -> RankTime:
        """A rank's time for all chunks."""
        times = [chunk[rank] for chunk in self.chunks]
        return RankTime(
            sum(time.limit_us for time in times),
            sum(time.launches_us for time in times),
            sum(time.messages_us for time in times),
        )

    def on_one_machine(self) -> "SplitTimes":
        """Nearly what the model takes on one machine: all ranks' work, and the launches of one rank of each stage."""
        if self.tensor * self.pipeline == 1:
            return self
        return SplitTimes(
            tensor=1,
            pipeline=1,
            memory_bytes=(sum(self.memory_bytes),),
            batch=self.batch,
            decode=(self._together(self.decode),),
            prompt=self.prompt,
            chunks=tuple((self._together(chunk),) for chunk in self.chunks),
        )

    def _together(self, times: Sequence[RankTime]) -> RankTime:
        launches = sum(max(time.launches_us for time in stage) for stage in self._by_stage(times))
        return RankTime(sum(time.limit_us for time in times), launches, 0.0)

    def _stages(self, times: Sequence[RankTime]) -> list[float]:
        return [
            max(time.compute_us for time in stage) + max(time.messages_us for time in stage)
            for stage in self._by_stage(times)
        ]

    def _by_stage(self, times: Sequence[RankTime]) -> Iterator[Sequence[RankTime]]:
        for stage in range(self.pipeline):
            yield times[stage * self.tensor : (stage + 1) * self.tensor]


def predict_split(
    artifact: Artifact, link: Link | None, chip: Chip, context: int, batch: int, prompt: int | None = None
) -> SplitTimes:
    """Predicts a decode step and a prompt, on machines that have the same chip.

    Args:
        artifact: for several ranks, or for one machine.
        link: between the ranks; None only for one machine.
        chip: of all machines.
        context: tokens of each sequence in the decode step.
        batch: its sequences.
        prompt: tokens of the prompt; None: 4096, or as many as a sequence can have.

    Raises:
        RequestError: the artifact does not hold so many sequences or tokens.
        ArtifactError: it has no code for GPUs, or the chip's speed is not known.
    """
    split = None if artifact.parallel is None else split_of(artifact)
    ranks = [artifact] if split is None else [artifact.of_rank(rank) for rank in range(split.size)]
    plan = ranks[0].plan
    check_batch(plan, context, batch)
    most = plan.arena.context
    prompt = min(USUAL_PROMPT, most) if prompt is None else prompt
    if not 1 <= prompt <= most:
        raise RequestError(f"the prompt has {prompt} tokens; the artifact holds 1 to {most}")
    steps: list[tuple[PhaseName, Mapping[BatchDim, int]]] = [("decode", decode_dims(batch, context))]
    steps += [("prefill", dims) for dims in _chunks(plan, prompt)]
    times: list[list[RankTime]] = []
    for rank, own in enumerate(ranks):
        rows = {phase.name: phase for phase in phase_rows(own, TARGET)}
        of_rank = []
        for phase, dims in steps:
            limits, messages_us = limits_of(own, chip, rows[phase], dims, phase), 0.0
            if split is not None and link is not None and own.plan.rank is not None:
                messages = MessageTimes(link, split.tensor, split.pipeline, own.plan.rank.result_bounds)
                last = rank >= split.size - split.tensor
                messages_us = sum(
                    messages.time_us(message, rows_of(message, dims))
                    for message in split.ranks[rank].messages[phase]
                    if last or message.kind != "gather"
                )
            of_rank.append(RankTime(limits.limit_us, limits.predicted_us - limits.limit_us, messages_us))
        times.append(of_rank)
    by_step = list(zip(*times, strict=True))
    return SplitTimes(
        tensor=1 if split is None else split.tensor,
        pipeline=1 if split is None else split.pipeline,
        memory_bytes=tuple(own.plan.program(TARGET).memory.total_bytes for own in ranks),
        batch=batch,
        decode=by_step[0],
        prompt=prompt,
        chunks=tuple(by_step[1:]),
    )


def rate_text(rate: float) -> str:
    """Tokens a second for people: three digits, or all before the point."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _chunks(plan: Plan, prompt: int) -> Iterator[dict[BatchDim, int]]:
    """The batches of a prompt's chunks; the last one's last token has logits."""
    for begin in range(0, prompt, plan.max_tokens):
        tokens = min(plan.max_tokens, prompt - begin)
        end = begin + tokens
        rows, tiles = int(end == prompt), -(-tokens // plan.query_tile)
        yield {"tokens": tokens, "seqs": 1, "rows": rows, "tiles": tiles, "context": end}
