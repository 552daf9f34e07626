"""Quantises a model to a size or to a speed: measures what formats cost, and chooses one for each tensor."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from mlxr.compiler.artifact import Chip
from mlxr.compiler.errors import RequestError
from mlxr.quantise.choose_formats import FORMATS, Choice, for_speed, least_divergence
from mlxr.quantise.gguf_output import padded
from mlxr.quantise.mixtures import MIXTURES, Mixture, may_be_quantised
from mlxr.quantise.requantise import GgufSource, Quantisation, alignment_of, quantised_bytes
from mlxr.quantise.sensitivity import Sensitivity
from mlxr.runtime.hosts.registry import AUTO

_WINDOW = 512
_CLOSEST = {"q2_k": "q2_k", "q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}
"""The mixture that a file of mostly this format says it is, where its name is another one."""


@dataclass(frozen=True)
class Goal:
    """What a model is quantised to: a size or a speed.

    Attributes:
        budget: bytes of the file; None: a speed is wanted.
        speed: tokens that one sequence decodes in a second, as predicted; None: a size is wanted.
        chip: of the speed.
        context: tokens that the sequence has.
        text: on which divergences are measured.
        tokens: of it, at most.
    """

    budget: int | None
    speed: float | None
    chip: Chip | None
    context: int
    text: str
    tokens: int


@dataclass(frozen=True)
class Fitted:
    """How a model is quantised to a goal.

    Attributes:
        how: with the format of each tensor.
        divergence: from the original, in nats, as estimated.
        speed: as predicted; None: a size was wanted.
    """

    how: Quantisation
    divergence: float
    speed: float | None


def fit_formats(
    source: GgufSource, goal: Goal, how: Quantisation, progress: Callable[[str, int, int], None] | None = None
) -> Fitted:
    """Chooses formats.

    Args:
        source: the model.
        goal: what to quantise it to.
        how: importance, threads, and whether tensors that are quantised already may be.
        progress: told what is done.

    Raises:
        RequestError: the goal cannot be reached; the message says what can.
        MlxrError: the model cannot be loaded or measured.
    """
    names = [name for name, tensor in source.tensors.items() if may_be_quantised(name, tensor.shape)]
    kept = {name: tensor.format for name, tensor in source.tensors.items() if name not in names}
    context = source.metadata.get(f"{source.facts.architecture}.context_length", _WINDOW)
    window = min(_WINDOW, goal.tokens, context)
    costs = Sensitivity(source, how, AUTO, progress).costs(names, FORMATS, goal.text, window, goal.tokens)
    if goal.budget is None:
        assert goal.speed is not None and goal.chip is not None, "a goal is a size or a speed"
        choice, speed = for_speed(source, costs, kept, goal.speed, goal.chip, goal.context)
        return Fitted(_with(how, choice), choice.divergence, speed)
    alignment = alignment_of(source)
    in_file = {n: {f: padded(size, alignment) for f, size in sizes.items()} for n, sizes in costs.size_bytes.items()}
    costs = replace(costs, size_bytes=in_file)
    smallest = {name: min(sizes, key=lambda each: sizes[each]) for name, sizes in in_file.items()}
    least = Choice(smallest, sum(in_file[name][format] for name, format in smallest.items()), 0.0)
    around = quantised_bytes(source, _with(how, least)) - least.size_bytes  # metadata and other tensors
    found = least_divergence(costs, goal.budget - around)
    if found is None:
        raise RequestError(
            f"--budget is {goal.budget:,} bytes; with its smallest formats the model takes "
            f"{least.size_bytes + around:,}"
        )
    return Fitted(_with(how, found), found.divergence, None)


def _with(how: Quantisation, choice: Choice) -> Quantisation:
    common = Counter(choice.formats.values()).most_common(1)[0][0]
    mixture: Mixture = MIXTURES[_CLOSEST.get(common, common)]
    return replace(how, mixture=mixture, formats=choice.formats)
