"""How config.json says that positions are rotated, in its several spellings, as a spec's `rope` section.

Sources: https://huggingface.co/docs/transformers, modeling_rope_utils, for the keys and their defaults.
"""

import math
from typing import Any

from mlxr.compiler.importers.facts import Facts
from mlxr.compiler.spec.explain import show

_KINDS = ("default", "linear", "llama3", "yarn", "longrope", "su", "dynamic")
_PROPORTIONAL = "proportional"
"""The kind of which a share of all pairs turn, and the others rest."""
_AXES = "mrope"
"""The kind of positions that have several axes, which are the same number for text."""


class ConfigRope:
    """Reads rope_theta and rope_scaling, or rope_parameters instead (transformers 5), which may differ by layers."""

    def __init__(self, facts: Facts) -> None:
        """Prepares to read.

        Args:
            facts: what config.json says.
        """
        self._facts = facts
        self._context = 0

    def __call__(self, layers: str | None, theta: float, fraction: float | None) -> dict[str, Any] | None:
        """See `mlxr.compiler.importers.evaluate.RopeReader`. Layers with a sliding window share no scaling."""
        kinds = (*_KINDS, _AXES) if layers == "axes" else _KINDS
        has_alpha = layers == "alpha"
        layers = "any" if layers in ("axes", "alpha") else layers
        section = self._section(layers)
        if section is None:
            share = 1.0 if fraction is None else fraction
            return {"theta": theta, "fraction": share, "turned": 1.0, "scaling": {"kind": "none"}}
        if section.get("rope_type") == _PROPORTIONAL:
            scaling = {"kind": "linear", "factor": factor} if (factor := section.number("factor", 1.0)) != 1 else None
            turned = section.number("partial_rotary_factor", 1.0)
            return {"theta": section.number("rope_theta", theta), "turned": turned} | (
                {"scaling": scaling} if scaling else {}
            )
        share = section.number("partial_rotary_factor", 1.0 if fraction is None else fraction)
        if fraction is None and share != 1.0:
            raise section.refuse(
                "partial_rotary_factor", share, "1: the family's own code does not read it, and rotates whole heads"
            )
        # All that may differ from the section of the other layers, over which this one is merged.
        rope = {"theta": section.number("rope_theta", theta), "fraction": share, "turned": 1.0}
        if layers != "any" and not section.flag("truncate", True):
            raise section.refuse("truncate", False, "true: the family's own code does not read it here")
        if has_alpha and "dynamic" in (section.get("rope_type"), section.get("type")) and section.get("alpha"):
            return rope | {"scaling": {"kind": "base", "factor": section.number("alpha")}}
        scaling = self._scaling(section, kinds) or ({"kind": "none"} if layers == "sliding_attention" else None)
        return rope | ({"scaling": scaling} if scaling else {})

    def score_factor(self) -> float:
        """See `mlxr.compiler.importers.evaluate.RopeReader`."""
        section = self._section("any")
        if section is None or (section.get("rope_type") or section.get("type") or "default") == "default":
            return 1.0
        of_all = section.number("mscale_all_dim", 0.0)
        return _mscale(section.number("factor"), of_all) ** 2 if of_all else 1.0

    def _section(self, layers: str | None) -> Facts | None:
        facts = self._facts
        parameters, scaling = facts.get("rope_parameters"), facts.get("rope_scaling")
        if parameters and scaling and parameters != scaling:
            raise facts.refuse("rope_scaling", scaling, "nothing beside rope_parameters, which say it too: remove one")
        if isinstance(parameters, dict) and any(isinstance(value, dict) for value in parameters.values()):
            sections = facts.section("rope_parameters")
            for name in ("full_attention", "sliding_attention"):  # both count as read, whichever is asked for first
                sections.section(name)
            return sections.section("full_attention" if layers in (None, "any") else layers)
        if layers != "any" and isinstance(parameters, dict) and parameters:
            raise facts.refuse("rope_parameters", parameters, "full_attention and sliding_attention in it")
        if layers != "any" and isinstance(scaling, dict) and scaling and "rope_type" not in scaling:
            raise facts.refuse("rope_scaling", scaling, "rope_type in it; the family's own code reads no other name")
        if layers == "sliding_attention":
            return None
        return facts.section("rope_parameters" if parameters else "rope_scaling")

    def _scaling(self, section: Facts, kinds: tuple[str, ...]) -> dict[str, Any] | None:
        named = [kind for kind in (section.get("rope_type"), section.get("type")) if kind is not None]
        kind = named[0] if named else "default"
        if kind not in kinds:
            raise section.refuse("rope_type", kind, f"one of {', '.join(kinds)}")
        original = self._original(section)
        if kind in ("default", "dynamic", _AXES):
            # Dynamic scaling begins beyond the model's own context, which is the longest that can be asked for.
            for key in ("factor", "finetuned"):
                section.get(key)
            return None
        section.get("finetuned")
        if kind == "linear":
            return {"kind": "linear", "factor": section.number("factor")}
        if kind == "llama3":
            if original is None:  # mlx-lm would take 8192, and transformers the model's whole context
                raise section.missing("original_max_position_embeddings")
            return {
                "kind": "llama3",
                "factor": section.number("factor"),
                "low_freq_factor": section.number("low_freq_factor", 1.0),
                "high_freq_factor": section.number("high_freq_factor", 4.0),
                "original_context": original,
            }
        own = self._facts.integer("max_position_embeddings")
        section.get("max_position_embeddings")  # some say it twice
        if original is None:
            original = own
        if not isinstance(original, int) or isinstance(original, bool) or original < 2:
            raise section.refuse("original_max_position_embeddings", original, "a whole number of at least 2")
        return _yarn(section, original) if kind == "yarn" else _longrope(section, original, own)

    def _original(self, section: Facts) -> Any:
        """The context that the model was first trained with: in the section, beside it, or the same in both."""
        key = "original_max_position_embeddings"
        inner, outer = section.get(key), self._facts.get(key)
        if inner is not None and outer is not None and inner != outer:
            raise section.refuse(key, inner, f"{show(outer)}, as {key} has it outside this section")
        return outer if inner is None else inner


def _yarn(section: Facts, original: int) -> dict[str, Any]:
    factor = section.number("factor")
    scaling: dict[str, Any] = {
        "kind": "yarn",
        "factor": factor,
        "original_context": original,
        "beta_fast": section.number("beta_fast", 32.0),
        "beta_slow": section.number("beta_slow", 1.0),
        "truncate": section.flag("truncate", True),
    }
    mscale, of_all = section.number("mscale", 0.0), section.number("mscale_all_dim", 0.0)
    if (given := section.get("attention_factor")) is not None:
        scaling["attention_factor"] = section.number("attention_factor", given)
    elif mscale and of_all and factor > 0:
        scaling["attention_factor"] = _mscale(factor, mscale) / _mscale(factor, of_all)
    return scaling


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(section: Facts, original: int, own: int) -> dict[str, Any]:
    """LongRoPE. The attention factor follows from the model's own context, not from the context compiled for."""
    stretched = section.number("factor", own / original)
    usual = math.sqrt(1 + math.log(stretched) / math.log(original)) if stretched > 1 else 1.0
    return {
        "kind": "longrope",
        "short_factors": _factors(section, "short_factor"),
        "long_factors": _factors(section, "long_factor"),
        "original_context": original,
        "attention_factor": section.number("attention_factor", usual),
    }


def _factors(section: Facts, key: str) -> list[Any]:
    value = section.get(key)
    if not isinstance(value, list) or not value or len(value) > 1024:
        raise section.refuse(key, value, "a list of numbers, one for each rotated pair")
    numbers = [item for item in value if isinstance(item, int | float) and not isinstance(item, bool)]
    if len(numbers) != len(value):
        raise section.refuse(key, value, "a list of numbers, one for each rotated pair")
    return [float(number) for number in numbers]
