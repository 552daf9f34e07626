"""Chooses the format of each tensor: the least divergence for so many bytes, or for a speed that is predicted.

Every tensor begins with its smallest format. Then the change that saves most divergence for each further byte is made,
again and again, until none fits. A format is left out where a line between a smaller and a larger one lies below it, so
that each step costs more for a byte than the one before.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from mlxr.compiler.artifact import Chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import RequestError
from mlxr.compiler.importers.gguf import FACTOR_TENSORS, spec_from_gguf
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.compiler.importers.tensors import TensorFact
from mlxr.inspect.roofline import roofline
from mlxr.quantise.requantise import GgufSource
from mlxr.quantise.sensitivity import Costs

FORMATS = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "iq4_xs")
"""The formats that tensors may get."""
_ROUNDS = 8
_CLOSE = 0.02
"""How far above a target a predicted speed may be, in parts of it."""


@dataclass(frozen=True)
class Choice:
    """Formats, and what they cost.

    Attributes:
        formats: by tensor.
        size_bytes: of these tensors.
        divergence: in nats, as estimated.
    """

    formats: Mapping[str, str]
    size_bytes: int
    divergence: float


def least_divergence(costs: Costs, most_bytes: float, factors: Mapping[str, float] | None = None) -> Choice | None:
    """The formats of least divergence that take so many bytes at most; None: even the smallest ones take more.

    Args:
        costs: of each format of each tensor.
        most_bytes: of all these tensors together.
        factors: how often the bytes of a tensor count; 1 if it is not there.
    """
    counted = factors or {}
    steps = {name: _hull(costs, name) for name in costs.size_bytes}
    at = dict.fromkeys(steps, 0)

    def weighed(name: str, place: int) -> float:
        return costs.size_bytes[name][steps[name][place]] * counted.get(name, 1.0)

    used = sum(weighed(name, 0) for name in steps)
    if used > most_bytes:
        return None
    queue: list[tuple[float, str]] = []

    def offer(name: str) -> None:
        if at[name] + 1 < len(steps[name]):
            old, new = (costs.divergence[name][steps[name][at[name] + shift]] for shift in (0, 1))
            more = weighed(name, at[name] + 1) - weighed(name, at[name])
            heapq.heappush(queue, (-(old - new) / max(more, 1e-9), name))

    for name in steps:
        offer(name)
    while queue:
        _, name = heapq.heappop(queue)
        more = weighed(name, at[name] + 1) - weighed(name, at[name])
        if used + more <= most_bytes:
            used += more
            at[name] += 1
            offer(name)
    formats = {name: steps[name][place] for name, place in at.items()}
    size = sum(costs.size_bytes[name][format] for name, format in formats.items())
    return Choice(formats, size, sum(costs.divergence[name][format] for name, format in formats.items()))


def _hull(costs: Costs, name: str) -> list[str]:
    """The formats of a tensor that are worth their bytes, the smallest first."""
    size, lost = costs.size_bytes[name], costs.divergence[name]
    hull: list[str] = []
    for format in sorted(size, key=lambda each: (size[each], lost[each])):
        if hull and (lost[format] >= lost[hull[-1]] or size[format] == size[hull[-1]]):
            continue
        while len(hull) > 1:
            first, last = hull[-2:]
            before = (lost[first] - lost[last]) / (size[last] - size[first])
            if (lost[last] - lost[format]) / (size[format] - size[last]) <= before:
                break
            hull.pop()
        hull.append(format)
    return hull


def for_speed(
    source: GgufSource, costs: Costs, kept: Mapping[str, str], speed: float, chip: Chip, context: int
) -> tuple[Choice, float]:
    """The formats of least divergence with which a chip decodes at this speed, as predicted; and the prediction.

    Args:
        source: the model.
        costs: of each format of each tensor that may be chosen.
        kept: the formats of all others.
        speed: tokens a second, of one sequence.
        chip: where it runs.
        context: tokens that the sequence has.

    Raises:
        RequestError: no choice is so fast.
    """
    predict = _Predictor(source, kept, chip, context)
    factors = _read_shares(source, costs)
    smallest, largest = (
        sum(pick(sizes.values()) * factors.get(name, 1.0) for name, sizes in costs.size_bytes.items())
        for pick in (min, max)
    )
    best: tuple[Choice, float] | None = None
    low, high, budget = smallest, largest, largest
    for _ in range(_ROUNDS):
        choice = least_divergence(costs, budget, factors)
        assert choice is not None, "the budget is at least that of the smallest formats"
        found = predict(choice.formats)
        if found >= speed:
            best, low = (choice, found), budget
            if budget == largest or found <= speed * (1 + _CLOSE):
                break
        else:
            high = budget
        if best is None and budget <= smallest:
            break
        # A step takes some time for each byte, and some more; with one byte less, it is that much shorter.
        slope = 1 / chip.figures.bandwidth_gb_per_s.value / 1e9 if chip.figures is not None else 0.0
        guess = budget + (1 / speed - 1 / found) / slope if slope else (low + high) / 2
        budget = guess if low < guess < high else (low + high) / 2
        budget = max(smallest, budget)
    if best is None:
        least = least_divergence(costs, smallest, factors)
        assert least is not None, "the smallest formats fit"
        found = predict(least.formats)
        if found < speed:
            raise RequestError(
                f"{chip.title} decodes this model at {found:.1f} tokens a second with its smallest formats, as "
                f"predicted; {speed:g} cannot be reached"
            )
        best = least, found
    return best


def _read_shares(source: GgufSource, costs: Costs) -> dict[str, float]:
    """How much of a tensor a token reads, where that is not all."""
    facts = source.facts
    used = source.metadata.get(f"{facts.architecture}.expert_used_count", 0)
    shares = {name: used / facts.experts for name in costs.size_bytes if "_exps." in name and facts.experts}
    if "output.weight" in source.tensors:  # of the embeddings, one row alone
        shares["token_embd.weight"] = 1e-3
    return shares


class _Predictor:
    """Predicts the speed of a model whose tensors have other formats, from the plan that the compiler makes of it."""

    def __init__(self, source: GgufSource, kept: Mapping[str, str], chip: Chip, context: int) -> None:
        self._source, self._kept, self._chip, self._context = source, kept, chip, context
        self._factors = {
            name: [float(number) for _, rows in source.tensors[name].slabs() for number in rows.ravel()]
            for name in FACTOR_TENSORS
            if name in source.tensors
        }

    def __call__(self, formats: Mapping[str, str]) -> float:
        """Tokens a second of one sequence."""
        types = {**self._kept, **formats}
        tensors = {name: TensorFact(tensor.shape, types[name].upper()) for name, tensor in self._source.tensors.items()}
        accepted = self._source.accepted_keys
        options = ImportOptions(max(self._context, 512), accepted_keys=accepted, force_context=True)
        spec = spec_from_gguf(self._source.metadata, tensors, "model", self._source.where, options, self._factors)
        artifact = compile_spec(spec, targets=("metal",), chip=self._chip).artifact
        decode, _ = roofline(artifact, self._chip, self._context, 1)
        return 1e6 / decode.predicted_us
