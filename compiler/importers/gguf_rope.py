"""How a GGUF file says that positions are rotated, as a spec's `rope` section.

Scaling is in keys, or in tensors of frequency divisors: one tensor for Llama 3's scaling, two for LongRoPE.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mlxr.compiler.build.rope import rope_frequencies
from mlxr.compiler.errors import SpecError
from mlxr.compiler.importers.facts import Facts, shortest_f32
from mlxr.compiler.spec.model import Llama3Scaling, Rope

_LLAMA3 = "rope_freqs.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_INFINITE = 1e29
"""A divisor of a frequency that files give to pairs that rest, or a greater one."""
FACTOR_TENSORS = (_LLAMA3, _LONG, _SHORT)
"""Tensors that hold a part of the scaling."""


class GgufRope:
    """Reads `rope.*`."""

    def __init__(self, facts: Facts, factors: Mapping[str, Sequence[float]]) -> None:
        """Prepares to read.

        Args:
            facts: what the file says.
            factors: the numbers of the tensors in FACTOR_TENSORS that the file has.
        """
        self._facts, self._factors = facts, factors

    def __call__(self, layers: str | None, theta: float, fraction: float | None) -> dict[str, Any] | None:
        """See `mlxr.compiler.importers.evaluate.RopeReader`. Layers with a sliding window have no scaling."""
        facts, halved = self._facts, layers == "halved"
        head_dim = facts.integer("attention.key_length", 0)  # with it, the number of heads may be a list
        if not head_dim:
            heads = facts.integer("attention.head_count")
            head_dim = facts.integer("embedding_length") // heads if heads > 0 else 0
        own = layers == "sliding_attention" and facts.has("attention.key_length_swa")
        if own:
            head_dim = facts.integer("attention.key_length_swa")
        rotary = head_dim if fraction is None else round(head_dim * fraction)
        rotary = rotary if own else facts.integer("rope.dimension_count", rotary)
        if layers == "sliding_attention":
            rotary = facts.integer("rope.dimension_count_swa", rotary)
        rotary = rotary // 2 if halved else rotary
        rope: dict[str, Any] = {
            "theta": shortest_f32(theta),
            "fraction": rotary / head_dim if head_dim > 0 else 1.0,
            "turned": 1.0,
        }
        if layers != "sliding_attention" and (resting := self._resting()):
            return rope | {"turned": 1 - resting / len(self._factors[_LLAMA3])}
        none = {"kind": "none"}  # explicit, because this section is merged over that of the other layers
        scaling = (
            none
            if layers == "sliding_attention"
            else self._scaling(rope["theta"], rotary, rotary // 2 if halved else 0)
        )
        return rope | ({"scaling": scaling} if scaling else {})

    def score_factor(self) -> float:
        """See `mlxr.compiler.importers.evaluate.RopeReader`; files have a tenth of `mscale_all_dim`."""
        factor = self._facts.number("rope.scaling.factor", 0.0)
        tenth = self._facts.number("rope.scaling.yarn_log_multiplier", 0.0)
        return (1 + tenth * math.log(factor)) ** 2 if factor > 1 else 1.0

    def _resting(self) -> int:
        """How many pairs rest: the last ones, with divisors that are as good as infinite, if all others have 1."""
        factors = self._factors.get(_LLAMA3, ())
        resting = sum(1 for factor in factors if factor >= _INFINITE)
        turning = factors[: len(factors) - resting]
        return resting if all(factor == 1 for factor in turning) else 0

    def _scaling(self, theta: float, rotary: int, max_pairs: int = 0) -> dict[str, Any] | None:
        facts, source = self._facts, self._facts.source
        kind = facts.choice("rope.scaling.type", ("none", "linear", "yarn", "longrope"), "linear")
        factor = facts.number("rope.scaling.factor", 0.0) or facts.number("rope.scale_linear", 0.0)
        attention = shortest_f32(facts.number("rope.scaling.attn_factor", 1.0))
        original = facts.integer("rope.scaling.original_context_length", 0)
        scaled = kind in ("linear", "yarn") and factor not in (0.0, 1.0)
        if self._factors and scaled:
            raise SpecError(f"{source}: has both {next(iter(self._factors))} and a rope.scaling.factor; one at most")
        if _LLAMA3 in self._factors:
            # Of layers that rotate less than others, llama.cpp takes the first ones.
            return _divided(source, theta, rotary, self._factors[_LLAMA3][: max_pairs or None], original or 8192)
        if _LONG in self._factors or _SHORT in self._factors:
            return self._longrope(original, attention)
        if attention != 1.0 and not (scaled and kind == "yarn"):
            raise facts.refuse("rope.scaling.attn_factor", attention, "1, without YaRN or factors")
        if not scaled:
            return None
        return {"kind": "linear", "factor": factor} if kind == "linear" else self._yarn(factor, original, attention)

    def _yarn(self, factor: float, original: int, attention: float) -> dict[str, Any]:
        """YaRN, with the factor of cosines and sines by DeepSeek's two mscales. Files have only the second."""
        facts = self._facts
        usual = 1 + 0.1 * math.log(factor) if factor > 1 else 1.0
        log_multiplier = facts.number("rope.scaling.yarn_log_multiplier", 0.0)
        taken_back = 1 + 0.1 * log_multiplier * math.log(factor) if factor > 1 else 1.0
        return {
            "kind": "yarn",
            "factor": factor,
            "original_context": original or facts.integer("context_length"),
            # Ollama's own files call them beta_fast and beta_slow.
            "beta_fast": facts.number("rope.scaling.yarn_beta_fast", facts.number("rope.scaling.beta_fast", 32.0)),
            "beta_slow": facts.number("rope.scaling.yarn_beta_slow", facts.number("rope.scaling.beta_slow", 1.0)),
            "attention_factor": attention * usual / taken_back,
            "truncate": True,
        }

    def _longrope(self, original: int, attention: float) -> dict[str, Any]:
        if not {_LONG, _SHORT} <= self._factors.keys():
            raise SpecError(f"{self._facts.source}: has one of {_LONG} and {_SHORT}; a model has both or none")
        return {
            "kind": "longrope",
            "short_factors": [shortest_f32(number) for number in self._factors[_SHORT]],
            "long_factors": [shortest_f32(number) for number in self._factors[_LONG]],
            "original_context": original or self._facts.integer("context_length"),
            "attention_factor": attention,
        }


def _divided(source: str, theta: float, rotary: int, factors: Sequence[float], original: int) -> dict[str, Any]:
    """The scaling with these divisors: Llama 3's if they follow its rule, else one with a divisor for each pair."""
    if len(factors) != rotary // 2 or not all(math.isfinite(f) and f > 0 for f in factors):
        raise SpecError(
            f"{source}: {_LLAMA3} has {len(factors)} numbers; expected {rotary // 2} finite ones above 0, one for each "
            "rotated pair"
        )
    try:
        scaling = Llama3Scaling(kind="llama3", factor=shortest_f32(max(factors)), original_context=original)
        scaled = rope_frequencies(Rope(theta=theta, scaling=scaling), rotary)
        plain = rope_frequencies(Rope(theta=theta), rotary)
    except ValueError:
        scaled = plain = ()
    if scaled and all(math.isclose(p / s, f, rel_tol=1e-4) for p, s, f in zip(plain, scaled, factors, strict=True)):
        return scaling.model_dump(mode="json")
    divisors = [shortest_f32(number) for number in factors]
    same = {"short_factors": divisors, "long_factors": divisors, "original_context": max(original, 2)}
    return {"kind": "longrope", "attention_factor": 1.0} | same
