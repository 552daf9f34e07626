"""Heads, divided among the ranks of a stage.

Whole KV heads with the queries that share them; where KV heads are fewer than ranks, several ranks have a copy of one,
and its queries are divided. Layers may differ: those of as many query heads have the same ranges of them, and those of
as many KV heads the same ranges of these, so that a count says what a rank has.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlxr.compiler.errors import PlanError
from mlxr.compiler.spec.attention import Attention
from mlxr.compiler.spec.divide_counts import Range, divide, ranges_of, shared_block, too_few
from mlxr.compiler.spec.model import ModelSpec


@dataclass(frozen=True)
class HeadRanges:
    """The ranges of each rank.

    Attributes:
        queries: of query heads, by how many a layer has.
        keys: of KV heads, by how many a layer has.
    """

    queries: Mapping[int, Sequence[Range]]
    keys: Mapping[int, Sequence[Range]]


@dataclass(frozen=True)
class _Kind:
    """Layers of the same numbers of heads.

    Attributes:
        layer: the first of them, for messages.
        attention: its attention.
        block: columns of an output projection that no rank may divide.
    """

    layer: int
    attention: Attention
    block: int

    @property
    def unit(self) -> int:
        """KV heads that no rank may divide."""
        return self.block // math.gcd(self.block, self.attention.gqa_ratio * self.attention.result_dim)


def divide_heads(spec: ModelSpec, fractions: Sequence[float]) -> HeadRanges:
    """The heads of each rank.

    Raises:
        PlanError: the heads of some layer cannot be divided so.
    """
    _check_norms(spec, len(fractions))
    queries: dict[int, list[Range]] = {}
    keys: dict[int, list[Range]] = {}
    by_heads: dict[int, list[_Kind]] = {}
    for kind in _kinds(spec):
        by_heads.setdefault(kind.attention.num_heads, []).append(kind)
    for num_heads, kinds in by_heads.items():
        queries[num_heads] = _queries(kinds, fractions)
        for kind in kinds:
            mine = _keys(kind, queries[num_heads])
            if keys.setdefault(kind.attention.num_kv_heads, mine) != mine:
                raise PlanError(
                    f"{kind.attention.num_kv_heads} KV heads of layer {kind.layer} would be divided otherwise than as "
                    "many of an earlier layer: give ranks equal shares"
                )
    return HeadRanges(queries, keys)


def _check_norms(spec: ModelSpec, ranks: int) -> None:
    for index, layer in enumerate(spec.model.layers if ranks > 1 else ()):
        norm = None if layer.attention is None else layer.attention.qk_norm
        if norm is not None and norm.scope == "all" and (norm.kind or spec.model.norm.kind) == "layer":
            raise PlanError(
                f"attention of layer {index} cannot be divided among {ranks} ranks: its layer norm needs the mean of "
                "all heads together, and ranks add up squares only; use stages instead (pipeline)"
            )


def _kinds(spec: ModelSpec) -> list[_Kind]:
    layers: dict[tuple[int, ...], list[tuple[int, Attention]]] = {}
    for index, layer in enumerate(spec.model.layers):
        if (a := layer.attention) is not None:
            layers.setdefault((a.num_heads, a.num_kv_heads, a.head_dim, a.result_dim), []).append((index, a))
    return [
        _Kind(*of[0], shared_block(spec, [f"layers.{index}.attention.o" for index, _ in of])) for of in layers.values()
    ]


def _queries(kinds: Sequence[_Kind], fractions: Sequence[float]) -> list[Range]:
    """Ranges of query heads that suit all of these layers."""
    ranks, num_heads = len(fractions), kinds[0].attention.num_heads
    if ranks == 1:
        return [(0, num_heads)]
    whole = [kind for kind in kinds if kind.attention.num_kv_heads >= ranks]
    for kind in whole:
        kv_heads = kind.attention.num_kv_heads
        if kv_heads % kind.unit or kv_heads // kind.unit < ranks:
            raise too_few(
                f"{kv_heads} KV heads",
                ranks,
                f"layers.{kind.layer}.attention.o has blocks of {kind.block} columns, those of {kind.unit} KV heads",
            )
    unit = math.lcm(*(kind.unit * kind.attention.gqa_ratio for kind in whole))
    copied = [kind for kind in kinds if kind.attention.num_kv_heads < ranks]
    if not copied:
        if num_heads // unit < ranks:
            raise too_few(f"{num_heads} query heads", ranks, f"their layers together divide them by {unit}")
        return ranges_of([unit * part for part in divide(num_heads // unit, fractions)])
    unit = math.lcm(unit, *(kind.block // math.gcd(kind.block, kind.attention.result_dim) for kind in copied))
    most = max(copied, key=lambda kind: kind.attention.num_kv_heads).attention
    result: list[Range] = []
    for kv_head, copies in enumerate(divide(ranks, [1.0] * most.num_kv_heads)):
        if most.gqa_ratio % unit or most.gqa_ratio // unit < copies:
            what = f"the {most.gqa_ratio} query heads of a KV head"
            raise too_few(what, copies, f"{unit} of them share a block of attention.o")
        mine, start = fractions[len(result) : len(result) + copies], kv_head * most.gqa_ratio
        parts = ranges_of([unit * part for part in divide(most.gqa_ratio // unit, mine)])
        result += [(start + first, start + last) for first, last in parts]
    return result


def _keys(kind: _Kind, queries: Sequence[Range]) -> list[Range]:
    """The KV heads that ranges of query heads read: whole ones, or a part of one."""
    ratio, keys = kind.attention.gqa_ratio, []
    for first, last in queries:
        if first // ratio != (last - 1) // ratio and (first % ratio or last % ratio):
            raise PlanError(
                f"query heads {first} to {last - 1} of a rank would share KV heads of layer {kind.layer} with others, "
                f"which serve {ratio} each; use fewer tensor ranks, or stages instead (pipeline)"
            )
        keys.append((first // ratio, (last - 1) // ratio + 1))
    return keys
