"""Which tensor of a GGUF file gets which format: the rules of llama-quantize, by names of tensors.

Some tensors get more bits than others in the same file: values and the last product of an MLP, in the first and the
last layers and in every third between, and the output.

Source: src/llama-quant.cpp of https://github.com/ggml-org/llama.cpp (MIT), without formats that MLXR does not read.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxr.quantise.block_quantiser import block_sizes

FLOATS = ("f32", "f16", "bf16")
_SMALLER_BLOCKS = {
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    "iq4_xs": "iq4_nl",
}
"""What a tensor gets whose rows have another length than whole blocks of 256."""
_KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    *(f"time_mix_{name}.weight" for name in ("w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2")),
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)
"""Parts of names of tensors that are never quantised: small ones, and those that nothing is multiplied by."""
_KEPT_NAMES = ("position_embd.weight", "token_types.weight")
_LAYER = re.compile(r"blk\.(\d+)\.")
_KINDS = (
    ("attn_qkv.weight", "qkv"),
    ("attn_kv_b.weight", "kv_b"),
    ("attn_v.weight", "v"),
    ("attn_k.weight", "k"),
    ("attn_q.weight", "q"),
    ("attn_output.weight", "o"),
    ("ffn_up", "up"),
    ("ffn_gate", "gate"),
    ("ffn_down", "down"),
)
_VALUES = ("v", "qkv", "kv_b")
"""Kinds of tensors that make values, in which errors cost most."""


@dataclass(frozen=True)
class Mixture:
    """A way to quantise a file.

    Attributes:
        name: what llama-quantize calls it, in small letters.
        file_type: its number in `general.file_type`.
        format: what most tensors get.
    """

    name: str
    file_type: int
    format: str


MIXTURES = {
    name: Mixture(name, number, format)
    for name, number, format in (
        ("f32", 0, "f32"),
        ("f16", 1, "f16"),
        ("bf16", 32, "bf16"),
        ("q8_0", 7, "q8_0"),
        ("q6_k", 18, "q6_k"),
        ("q5_k_m", 17, "q5_k"),
        ("q5_k_s", 16, "q5_k"),
        ("q5_1", 9, "q5_1"),
        ("q5_0", 8, "q5_0"),
        ("q4_k_m", 15, "q4_k"),
        ("q4_k_s", 14, "q4_k"),
        ("q4_1", 3, "q4_1"),
        ("q4_0", 2, "q4_0"),
        ("iq4_nl", 25, "iq4_nl"),
        ("iq4_xs", 30, "iq4_xs"),
        ("mxfp4", 38, "mxfp4"),
        ("q3_k_l", 13, "q3_k"),
        ("q3_k_m", 12, "q3_k"),
        ("q3_k_s", 11, "q3_k"),
        ("q2_k", 10, "q2_k"),
        ("q2_k_s", 21, "q2_k"),
    )
}
"""By name."""
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "mxfp4_moe": "mxfp4"}


@dataclass(frozen=True)
class ModelFacts:
    """What the rules need to know of a model.

    Attributes:
        architecture: GGUF's name.
        layers: how many.
        queries_per_key: heads of queries for each head of keys.
        experts: of a layer; 0: it has none.
        is_70b: whether llama.cpp counts it as a model of this size.
    """

    architecture: str
    layers: int
    queries_per_key: int = 1
    experts: int = 0
    is_70b: bool = False


@dataclass(frozen=True)
class Wishes:
    """What a user wants otherwise.

    Attributes:
        pure: whether all tensors get the mixture's own format.
        output: the format of the output projection; empty: by the rules.
        embedding: the format of the embeddings; empty: by the rules.
        tensors: formats by expressions that match a part of a name.
    """

    pure: bool = False
    output: str = ""
    embedding: str = ""
    tensors: tuple[tuple[str, str], ...] = ()


def in_order(names: Mapping[str, object]) -> list[str]:
    """Names of tensors as llama.cpp orders them: those of no layer first, then by layer."""
    return sorted(names, key=lambda name: (int(match[1]) if (match := _LAYER.match(name)) else -1, name.encode()))


def choose_formats(
    tensors: Mapping[str, tuple[tuple[int, ...], str]],
    mixture: Mixture,
    facts: ModelFacts,
    wishes: Wishes,
    has_importance: bool = False,
) -> dict[str, str]:
    """The format of each tensor, in the order of `in_order`.

    Args:
        tensors: shape (outermost first) and format, by name.
        mixture: how to quantise.
        facts: of the model.
        wishes: what goes before the rules.
        has_importance: whether there is an importance matrix.
    """
    chooser = _Chooser(mixture, facts, wishes, has_importance, {_kind(name) for name in tensors})
    chooser.totals["values"] = sum(_kind(name) in _VALUES for name in tensors)
    chosen = {}
    for name in in_order(tensors):
        shape, format = tensors[name]
        chosen[name] = chooser.choose(name, shape) if may_be_quantised(name, shape) else format
    return chosen


def may_be_quantised(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the rules allow it: matrices, and stacks of them, that are multiplied with many numbers."""
    if len([size for size in shape[:-1] if size > 1]) == 0:
        return False
    return name.endswith("weight") and name not in _KEPT_NAMES and not any(part in name for part in _KEPT)


def _kind(name: str) -> str:
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "embedding"
    return next((kind for part, kind in _KINDS if part in name), "")


@dataclass
class _Chooser:
    """Goes through the tensors of a file in order, and counts those of each kind."""

    mixture: Mixture
    facts: ModelFacts
    wishes: Wishes
    has_importance: bool
    kinds: set[str]
    seen: Counter[str] = field(default_factory=Counter)
    totals: dict[str, int] = field(default_factory=dict)

    def choose(self, name: str, shape: tuple[int, ...]) -> str:
        """The format of the next tensor."""
        kind, format = _kind(name), self.mixture.format
        named = next((wish for part, wish in self.wishes.tensors if re.search(part, name)), None)
        if self.wishes.embedding and kind == "embedding" and not (named and name.startswith("per_layer")):
            return fitting(self.wishes.embedding, shape[-1])
        if self.wishes.output and kind == "output":
            return fitting(self.wishes.output, shape[-1])
        if format in FLOATS:
            return format
        if named is not None:
            format = named
        elif not self.wishes.pure:
            format = self._by_rule(name, kind, shape)
        return fitting(format, shape[-1])

    def _by_rule(self, name: str, kind: str, shape: tuple[int, ...]) -> str:
        format = self.mixture.format
        if kind == "output" or (kind == "embedding" and "output" not in self.kinds):
            if self.wishes.output:
                return self.wishes.output
            odd = shape[-1] % block_sizes(format)[0] != 0
            if self.mixture.name == "mxfp4" or self.facts.architecture == "falcon" or odd:
                return "q8_0"
            return format if format == "q8_0" else "q6_k"
        if self.mixture.name == "mxfp4":
            return "mxfp4" if len(shape) > 2 and shape[0] > 1 else "q8_0"
        if kind in _VALUES:
            return self._values()
        if kind == "k" and self.facts.experts == 8:
            return "q8_0"
        if kind == "down":
            return self._down(name)
        if kind == "o":
            return self._attention_output()
        return format

    def _values(self) -> str:
        place, of, mixture, grouped = self.seen["values"], self.totals["values"], self.mixture.name, self._is_grouped
        self.seen["values"] += 1
        format = self.mixture.format
        if mixture == "q2_k":
            format = "q4_k" if grouped else "q3_k"
        elif mixture == "q2_k_s" and grouped:
            format = "q4_k"
        elif mixture == "q3_k_m":
            format = "q5_k" if place < 2 else "q4_k"
        elif mixture == "q3_k_l" or (mixture in ("iq4_nl", "iq4_xs") and grouped):
            format = "q5_k"
        elif mixture in ("q4_k_m", "q5_k_m") and _gets_more(place, of):
            format = "q6_k"
        elif mixture == "q4_k_s" and place < 4:
            format = "q5_k"
        if self.facts.is_70b and format in ("q3_k", "q4_k"):
            format = "q5_k"
        return "q8_0" if self.facts.experts == 8 else format

    @property
    def _is_grouped(self) -> bool:
        return self.facts.queries_per_key >= 4

    def _down(self, name: str) -> str:
        place, of, mixture, format = self.seen["down"], self.facts.layers, self.mixture.name, self.mixture.format
        self.seen["down"] += 1
        is_falcon = self.facts.architecture == "falcon"
        if self.facts.experts > 1 and (match := _LAYER.match(name)):
            place = int(match[1])
        is_early, gets_more = place < of // 8, _gets_more(place, of)
        if mixture == "q2_k":
            return "q3_k"
        if mixture == "q2_k_s":
            return "q4_k" if is_early else format
        if mixture == "q3_k_m":
            return "q5_k" if place < of // 16 else "q4_k" if not is_falcon or gets_more else "q3_k"
        if mixture == "q3_k_l":
            return "q4_k" if is_falcon else "q5_k"
        if mixture == "q4_k_m":
            if is_falcon:
                return "q6_k" if place < of // 16 else "q5_k" if gets_more else "q4_k"
            return "q6_k" if gets_more else format
        if is_early and mixture in ("iq4_nl", "iq4_xs") and not self.has_importance:
            return "q5_k"
        if mixture == "q5_k_m" and gets_more:
            return "q6_k"
        if mixture == "q4_k_s" and not is_falcon and is_early:
            return "q5_k"
        if mixture in ("q4_0", "q5_0") and self.has_importance and is_early:
            return {"q4_0": "q4_1", "q5_0": "q5_1"}[mixture]
        return format

    def _attention_output(self) -> str:
        mixture, format = self.mixture.name, self.mixture.format
        if self.facts.architecture == "falcon":
            return "q4_k" if mixture == "q3_k_l" else format
        if self.facts.experts == 8:
            small = ("q2_k", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m", "iq4_xs")
            return "q5_k" if mixture in small else format
        return {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k"}.get(mixture, format)


def _gets_more(place: int, of: int) -> bool:
    """Whether a layer is among those that get more bits in `_m` mixtures."""
    return place < of // 8 or place >= 7 * of // 8 or (place - of // 8) % 3 == 2


def fitting(format: str, columns: int) -> str:
    """The format, or one of smaller blocks if rows of so many columns are no whole blocks of it."""
    if columns % block_sizes(format)[0] == 0:
        return format
    format = _SMALLER_BLOCKS.get(format, format)
    return format if columns % block_sizes(format)[0] == 0 else "f16"
