"""Plans a model for a machine without its weights: the plan says what memory it takes, and how long its launches are.

How fast it is comes from the plan, too. On a GPU from the roofline of each launch, with the figures of the chip. On
host cpu of this machine from the C program itself, which runs for some seconds over weights that are zeros
(`rehearsal.py`): no figures of a CPU say what its kernels reach. Where a card leaves experts to the CPU, the two are
added.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mlxr.compiler.artifact import Artifact, Chip, HandoverCall
from mlxr.compiler.artifact.typical_steps import usual_context
from mlxr.compiler.errors import HostError, MlxrError, RequestError
from mlxr.compiler.spec.model import ModelSpec
from mlxr.fit.machine import Machine
from mlxr.fit.rehearse import rehearse, rehearse_experts
from mlxr.inspect.roofline import roofline
from mlxr.loading.artifact_cache import cached_artifact
from mlxr.loading.find_model import FoundModel, find_model
from mlxr.loading.fit_experts import leaving_experts
from mlxr.loading.options import LoadOptions
from mlxr.loading.own_head import changes_with_head, head_of
from mlxr.loading.resolve import artifact_of, check_first
from mlxr.runtime.memory.fitting_arena import GOOD_CONTEXT, Footprint, fitting_arena, least_arena

MOST_SEQUENCES = 1024
"""More sequences than this are not counted."""


@dataclass(frozen=True)
class Speed:
    """How fast a model is, with one sequence.

    Attributes:
        decode_tokens_per_second: after a context of `context` tokens.
        prompt_tokens_per_second: of the longest chunk of a prompt that a step reads.
        context: tokens.
        source: where this is from, for people.
        program_bytes: memory of the process besides the plan's (Python, tokenizer); None: not measured.
    """

    decode_tokens_per_second: float
    prompt_tokens_per_second: float
    context: int
    source: str
    program_bytes: int | None = None


@dataclass(frozen=True)
class Fit:
    """What a model takes on a machine, and what it gives there.

    Attributes:
        weights_bytes: weights, those that stay mapped from their file included.
        mapped_bytes: those of them that stay mapped.
        activation_bytes: activations of the largest step, scratch of all threads, and what recorded steps have.
        arena_bytes: the cache of one sequence of `context` tokens.
        context: tokens.
        own_context: the longest that the model has.
        longest_context: the longest of one sequence that the memory has room for; 0: it does not fit.
        sequences: how many of `context` tokens it has room for at once.
        refusal: why it does not fit, for people; None: it does.
        speed: how fast it is; None: that is not known, or it does not fit.
        no_speed: why the speed is not known; None: it is.
        experts_on_cpu: of how many layers the CPU computes the experts, beside a card.
        cpu_bytes: what these take of the machine's memory; not part of the others.
    """

    weights_bytes: int
    mapped_bytes: int
    activation_bytes: int
    arena_bytes: int
    context: int
    own_context: int
    longest_context: int = 0
    sequences: int = 0
    refusal: str | None = None
    speed: Speed | None = None
    no_speed: str | None = None
    experts_on_cpu: int = 0
    cpu_bytes: int = 0

    @property
    def planned_bytes(self) -> int:
        """All that the plan counts, with one sequence of `context` tokens."""
        return self.weights_bytes + self.activation_bytes + self.arena_bytes

    @property
    def memory_bytes(self) -> int:
        """This, and the program itself, if that was measured."""
        return self.planned_bytes + ((self.speed and self.speed.program_bytes) or 0)

    @property
    def has_good_context(self) -> bool:
        """Whether it fits with a context that people will find long enough."""
        return self.longest_context >= min(GOOD_CONTEXT, self.own_context)


@dataclass(frozen=True)
class _Planned:
    """A compiled model, and what it takes on a host."""

    artifact: Artifact
    target: str
    weights: Path | None
    footprint: Footprint


def fit(
    model: "str | Path | ModelSpec",
    machine: Machine,
    options: LoadOptions,
    context: int | None = None,
    tell: Callable[[str], None] = lambda what: None,
    *,
    timed: bool = True,
) -> Fit:
    """Plans a model for a machine.

    Args:
        model: what `find_model` takes; its weights may be zeros.
        machine: where it would run.
        options: how it would be loaded; its host is the machine's.
        context: tokens of the sequence that memory is told for; None: a good length, or all that the model has.
        tell: called with what is being done.
        timed: whether the speed is wanted.

    Raises:
        MlxrError: there is no such model, it is not supported, or its files contradict each other.
    """
    tell("planning")
    planned = _plan(find_model(model, replace(options, host=machine.host.name)), machine)
    artifact, footprint = planned.artifact, planned.footprint
    plan = artifact.plan.programs[planned.target].arena
    own = plan.context
    tokens = min(GOOD_CONTEXT if context is None else context, own)
    one = least_arena(artifact, planned.target, tokens).size_bytes
    weights = footprint.weights_bytes + footprint.mapped_bytes
    told = Fit(weights, footprint.mapped_bytes, footprint.activation_bytes, one, tokens, own)
    if artifact.experts is not None:
        beside = artifact.experts.plan.largest_memory.total_bytes
        told = replace(told, experts_on_cpu=artifact.spec.experts_on_cpu, cpu_bytes=beside)
    try:
        arena = fitting_arena(artifact, planned.target, footprint, machine.memory, shrink=True)
    except HostError as error:
        return replace(told, refusal=f"{error}{_mapped(planned, machine, options.threads)}")
    room = machine.memory.free_bytes - weights - footprint.activation_bytes
    sequences = min(MOST_SEQUENCES, max(0, room) // one) if one else MOST_SEQUENCES  # an encoder keeps nothing of them
    told = replace(told, longest_context=arena.context, sequences=sequences)
    if not timed or artifact.plan.whole_prompts:  # an encoder writes no tokens
        return told
    try:
        return replace(told, speed=_speed(planned, machine, options.threads, tell))
    except MlxrError as error:
        return replace(told, no_speed=str(error))


def _mapped(planned: _Planned, machine: Machine, threads: int | None) -> str:
    """How fast a model that does not fit is, where the host maps packed weights; empty: it cannot, or nobody knows."""
    from mlxr.runtime.engine.choose_arena import footprint_of  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.engine.choose_resident import resident_bytes, speed_line  # noqa: PLC0415
    from mlxr.runtime.weights.open_weights import open_weights  # noqa: PLC0415

    host, artifact, target, free = machine.host.load(), planned.artifact, planned.target, machine.memory
    if not (machine.is_here and host.packs_weights and planned.weights is not None):
        return ""
    plan = partial(footprint_of, host, artifact, open_weights(planned.weights), threads, None)
    footprint = plan(resident=0)
    try:
        arena = fitting_arena(artifact, target, footprint, free, shrink=True)
    except HostError:
        return ""
    left = free.free_bytes - footprint.weights_bytes - footprint.activation_bytes - arena.size_bytes
    resident = resident_bytes(artifact, target, footprint, left)
    line = speed_line(artifact, target, plan(resident=resident), free, left - resident, threads)
    return "" if line is None else f". It runs mapped from a file all the same (--mmap): {line}"


def _plan(found: FoundModel, machine: Machine) -> _Planned:
    from mlxr.runtime.engine.choose_arena import footprint_of  # noqa: PLC0415 (loads MLX)
    from mlxr.runtime.weights.open_weights import open_weights  # noqa: PLC0415

    def compiled(spec: ModelSpec, own: Path | None) -> Artifact:
        spec = leaving_experts(spec, machine.host, machine.chip, found.options, machine.memory)
        return cached_artifact(spec, machine.chip, partial(check_first, spec, own))

    artifact, own = artifact_of(found, compiled=compiled, changes=changes_with_head(found.options))
    if artifact.parallel is not None:
        raise RequestError(f"{artifact.spec.name} is split over ranks: mlxr inspect says what each of them needs")
    weights = found.options.weights or own
    target = machine.host.target_among(artifact.plan.targets)
    if weights is None:
        memory, host = artifact.plan.program(target).memory, machine.host.load()
        working = memory.activation_bytes + host.recorded_bytes(artifact.plan)
        return _Planned(artifact, target, None, Footprint(memory.weights_bytes, 0, working))
    path = Path(weights)
    head = head_of(artifact, path, found.options, lambda: machine.chip)
    host = machine.host.load()
    footprint = footprint_of(host, artifact, open_weights(path), found.options.threads, head)
    return _Planned(artifact, target, path, footprint)


def _speed(planned: _Planned, machine: Machine, threads: int | None, tell: Callable[[str], None]) -> Speed:
    """How fast the model is.

    Raises:
        HostError: the program cannot be built or run.
        ArtifactError: the chip's speed is not known.
    """
    artifact, chip = planned.artifact, machine.chip
    if planned.target == "cpu":
        if not machine.is_here:
            raise RequestError("how fast a CPU is, only this machine's can tell")
        tell("timing")
        context = usual_context(artifact.plan)
        timed = rehearse(artifact, planned.weights, context, threads)
        return Speed(
            timed.decode_tokens_per_second,
            timed.prompt_tokens_per_second,
            context,
            "its program, timed here over empty weights",
            timed.program_bytes,
        )
    if chip is None:
        raise RequestError("the chip of this machine's GPU is not known: name one like it with --chip")
    context = usual_context(artifact.plan)
    steps, source = roofline(artifact, chip, context, 1), f"roofline of {chip.title}"
    beside_us = (0.0, 0.0)
    if artifact.experts is not None:
        if not machine.is_here:
            raise RequestError("how fast the CPU computes experts beside that card, only a machine with both can tell")
        tell("timing")
        beside_us = _experts_us(artifact, chip, threads)
        source += ", and the CPU's experts, timed here over empty weights"
    rate, prompt_rate = (
        1e6 * step.tokens / (step.predicted_us + beside) for step, beside in zip(steps, beside_us, strict=True)
    )
    return Speed(rate, prompt_rate, context, source)


def _experts_us(artifact: Artifact, chip: Chip, threads: int | None) -> tuple[float, float]:
    """What a step of one token, and of a prompt's longest chunk, takes beside the card's launches, in microseconds.

    The card waits while the CPU computes; what it does in that time (a shared expert) is not taken off.
    """
    assert chip.figures is not None, "the roofline has them"
    timed = rehearse_experts(artifact, threads)
    (decode, *_) = artifact.plan.first.phases
    exchanges = sum(isinstance(launch.body, HandoverCall) for launch in decode.launches)
    exchange_us = exchanges * chip.figures.launch_us.value
    return 1e6 * timed.decode_seconds + exchange_us, 1e6 * timed.prefill_seconds + exchange_us
