"""Which part of a model each rank has.

Heads go by whole KV heads, with the queries that share them; where KV heads are fewer than ranks, several ranks have a
copy of one, and its queries are divided. MLPs go by columns, mixtures by experts, embedding and logits by rows of the
vocabulary, recurrent blocks by their units, and stages have whole layers. No block of a quantised weight is divided.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.stores import Countable
from mlxr.compiler.spec.divide_counts import Range, divide, ranges_of, shared_block, too_few
from mlxr.compiler.spec.divide_heads import HeadRanges, divide_heads
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.parallel import Parallel

_ROWS = 16
"""Rows of the vocabulary that stay together: target cpu packs as many."""


@dataclass(frozen=True)
class Share:
    """The part of one rank.

    Attributes:
        rank: its number.
        split: how the model is split.
        layers: its layers.
        heads, kv_heads: its query heads and KV heads, by how many a layer has.
        columns: its columns of MLPs, by their whole width.
        experts: its experts, by their whole number.
        units: its units of recurrent blocks (heads with what belongs to them, or channels), by their whole number.
        vocabulary: its rows of embedding and output.
    """

    rank: int
    split: Parallel
    layers: Range
    heads: dict[int, Range]
    kv_heads: dict[int, Range]
    columns: dict[int, Range]
    experts: dict[int, Range]
    units: dict[int, Range]
    vocabulary: Range

    @property
    def stage(self) -> int:
        """The stage of this rank."""
        return self.rank // self.split.tensor

    @property
    def tensor_rank(self) -> int:
        """Its number within the stage."""
        return self.rank % self.split.tensor

    @property
    def adds_wholes(self) -> bool:
        """Whether it adds what all have whole to a sum of which each has a part: one of them does."""
        return self.tensor_rank == 0

    @property
    def is_divided(self) -> bool:
        """Whether several ranks share the layers of its stage."""
        return self.split.tensor > 1

    @property
    def is_first(self) -> bool:
        """Whether its stage has the embedding."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether its stage has the output."""
        return self.stage == self.split.pipeline - 1

    def range_of(self, what: Countable, count: int) -> Range:
        """Which the rank has of `count` that the model has."""
        if what == "vocabulary":
            return self.vocabulary
        by_count: dict[int, Range] = getattr(self, what)
        return by_count[count]


def shares(spec: ModelSpec) -> tuple[Share, ...]:
    """The share of every rank.

    Raises:
        PlanError: something cannot be divided among so many ranks; the message names it.
    """
    split = spec.parallel
    assert split is not None, "the caller knows that the model is split"
    fractions = _fractions(spec, split)
    of_stages = fractions if split.tensor == 1 else _of_stages(spec, split)
    of_ranks = fractions if split.tensor > 1 else (1.0,)
    layers = _layers(spec, split, of_stages)
    model, heads = spec.model, divide_heads(spec, of_ranks)
    columns = {width: _columns(spec, width, names, of_ranks, heads) for width, names in _widths(spec).items()}
    experts = {}
    for count in sorted({la.mlp.experts.count for la in model.layers if la.mlp and la.mlp.experts is not None}):
        experts[count] = _divided(count, 1, of_ranks, f"{count} experts")
    units = _units(spec, of_ranks)
    unit = _ROWS if model.vocab_size >= 4 * _ROWS * split.tensor else 1
    vocabulary = _divided(model.vocab_size, unit, of_ranks, f"a vocabulary of {model.vocab_size}")
    return tuple(
        Share(
            rank=rank,
            split=split,
            layers=layers[rank // split.tensor],
            heads={count: ranges[t] for count, ranges in heads.queries.items()},
            kv_heads={count: ranges[t] for count, ranges in heads.keys.items()},
            columns={width: ranges[t] for width, ranges in columns.items()},
            experts={count: ranges[t] for count, ranges in experts.items()},
            units={count: ranges[t] for count, ranges in units.items()},
            vocabulary=vocabulary[t],
        )
        for rank in range(split.size)
        for t in (rank % split.tensor,)
    )


def _fractions(spec: ModelSpec, split: Parallel) -> tuple[float, ...]:
    """The fraction of each rank of a stage, or of each stage if tensor is 1."""
    parts = split.tensor if split.tensor > 1 else split.pipeline
    if split.shares is not None:
        return split.shares
    budget = spec.memory_budget
    if not isinstance(budget, tuple):
        return (1 / parts,) * parts
    if split.tensor == 1:
        return tuple(bytes_ / sum(budget) for bytes_ in budget)
    least = [min(budget[t :: split.tensor]) for t in range(split.tensor)]
    return tuple(bytes_ / sum(least) for bytes_ in least)


def _of_stages(spec: ModelSpec, split: Parallel) -> tuple[float, ...]:
    """The fraction of each stage, where `shares` are those of the ranks within a stage."""
    budget = spec.memory_budget
    if not isinstance(budget, tuple):
        return (1 / split.pipeline,) * split.pipeline
    return tuple(sum(budget[rank : rank + split.tensor]) / sum(budget) for rank in range(0, split.size, split.tensor))


def _layers(spec: ModelSpec, split: Parallel, fractions: Sequence[float]) -> list[Range]:
    """The layers of each stage. Without a list, by fractions of all elements, embedding and output included."""
    counts = list(split.layers or ())
    if split.pipeline > spec.model.num_layers or (counts and sum(counts) != spec.model.num_layers):
        stages = f"stages of {', '.join(map(str, counts))} layers" if counts else f"{split.pipeline} stages"
        raise PlanError(f"a model of {spec.model.num_layers} layers cannot be divided into {stages}: give others")
    if not counts:
        shapes = spec.matrix_shapes()
        elements = {name: rows * columns for name, (rows, columns) in shapes.items()}
        in_layers = sum(count for name, count in elements.items() if name.startswith("layers."))
        outside = elements["embedding"]
        total = in_layers + outside + (elements.get("output", outside) if split.pipeline > 1 else 0)
        weights = [fraction * total for fraction in fractions]
        weights[0] -= outside
        weights[-1] -= elements.get("output", outside)
        counts = divide(spec.model.num_layers, [max(weight, in_layers * 1e-3) for weight in weights])
        return _moved(spec, ranges_of(counts))
    return ranges_of(counts)


def _moved(spec: ModelSpec, stages: list[Range]) -> list[Range]:
    """The stages, with ends moved as little as possible so that no layer uses keys that an earlier stage has.

    As they are where that cannot be.
    """
    owners = [spec.model.kv_owner(layer) for layer in range(spec.model.num_layers)]
    whole = [end for end in range(1, len(owners)) if all(owner >= end for owner in owners[end:])]
    ends: list[int] = []
    for number, (_, end) in enumerate(stages[:-1], 1):
        allowed = [e for e in whole if (not ends or e > ends[-1])]
        allowed = allowed[: len(allowed) - (len(stages) - 1 - number)]
        if not allowed:
            return stages
        ends.append(min(allowed, key=lambda e: (abs(e - end), e)))
    return list(zip([0, *ends], [*ends, len(owners)], strict=True))


def _widths(spec: ModelSpec) -> dict[int, list[str]]:
    """The names of the matrices that read an MLP's columns, by their number."""
    widths: dict[int, list[str]] = {}
    for index, layer in enumerate(spec.model.layers):
        if layer.mlp is None:
            continue
        if layer.mlp.experts is None:
            widths.setdefault(layer.mlp.intermediate_size, []).append(f"layers.{index}.mlp.down")
        elif layer.mlp.experts.shared is not None:
            width = layer.mlp.experts.shared.intermediate_size
            widths.setdefault(width, []).append(f"layers.{index}.mlp.shared.down")
    return widths


def _columns(
    spec: ModelSpec,
    width: int,
    names: Sequence[str],
    fractions: Sequence[float],
    heads: HeadRanges,
) -> list[Range]:
    """Columns of each rank, such that each has its fraction of a layer, attention included."""
    if len(fractions) == 1:
        return [(0, width)]
    unit = math.lcm(shared_block(spec, names), 16)
    unit = unit if width % unit == 0 else math.lcm(shared_block(spec, names), 8)
    count = width // unit
    if width % unit or count < len(fractions):
        raise too_few(f"{names[0]} of {width} columns", len(fractions), f"it is divided by {unit} columns")
    shapes = spec.matrix_shapes()
    prefix = names[0].removesuffix("down")
    mlp = sum(rows * columns for name, (rows, columns) in shapes.items() if name.startswith(prefix))
    layer = prefix.split(".")[1]
    attention = spec.model.layer(int(layer)).attention
    own = [0] * len(fractions)  # recurrent blocks are divided by the same fractions
    if attention is not None:
        of_head = (attention.head_dim + attention.result_dim) * spec.model.hidden_size
        both = zip(heads.queries[attention.num_heads], heads.keys[attention.num_kv_heads], strict=True)
        own = [of_head * ((q[1] - q[0]) + (kv[1] - kv[0])) for q, kv in both]
    dense = f"layers.{layer}.mlp.experts.up" not in shapes
    weights = [f * (sum(own) + mlp) - o if dense else f * mlp for f, o in zip(fractions, own, strict=True)]
    return ranges_of([unit * part for part in divide(count, [max(weight, mlp * 1e-3) for weight in weights])])


def _units(spec: ModelSpec, fractions: Sequence[float]) -> dict[int, list[Range]]:
    """The units of recurrent blocks that each rank has, by their whole number."""
    found: dict[int, list[Range]] = {}
    blocks = list(enumerate(spec.model.recurrents))
    names = [f"layers.{index}.recurrent.o" for index, recurrent in blocks if recurrent is not None]
    for recurrent in {recurrent for _, recurrent in blocks if recurrent is not None}:
        size, block = recurrent.result_width // recurrent.units, shared_block(spec, names)
        of_blocks = block // math.gcd(block, size // recurrent.tiles)
        unit = 1 if len(fractions) == 1 else math.lcm(of_blocks, _ROWS // math.gcd(_ROWS, size))
        what = f"{names[0]} of {recurrent.units} units of {size} columns"
        found[recurrent.units] = _divided(recurrent.units, unit, fractions, what)
    return found


def _divided(count: int, unit: int, fractions: Sequence[float], what: str) -> list[Range]:
    """Ranges of whole units; the last one has what is left over."""
    if count // unit < len(fractions):
        raise too_few(what, len(fractions), f"it is divided by {unit}")
    parts = [unit * part for part in divide(count // unit, fractions)]
    parts[-1] += count % unit
    return ranges_of(parts)
