"""Which op of one graph is which op of the other: by what the ops are, not by their names.

Ops are paired within the same layer, or within what comes before or after the layers; a pair has one kind.

1. Two ops are a pair if they are equal, and no other op of their layer is like them.
2. Of several equal ops, those are a pair that stand beside pairs: that read from them, and that they read.
3. Of all ways to pair what is left of two layers in order, the one whose pairs have most in common is taken.
4. Ops that this leaves over, and that are equal but for their place, are pairs.

Source: the third step is the alignment of sequences by Needleman and Wunsch 1970, without a cost of gaps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mlxr.compiler.artifact import Op, OpGraph, Value
from mlxr.inspect.layers import without_layer

Section = int | str
"""The number of a layer, or `before` or `after` the layers."""
Facts = dict[str, Any]
_PER_WEIGHT = 2.0


def sections(graph: OpGraph) -> dict[Section, list[Op]]:
    """The ops of each layer, and those before and after the layers, in program order."""
    parts: dict[Section, list[Op]] = {"before": []}
    seen_layer = False
    for op in graph.ops:
        seen_layer = seen_layer or op.layer is not None
        parts.setdefault(op.layer if op.layer is not None else "after" if seen_layer else "before", []).append(op)
    parts["after"] = parts.pop("after", [])
    return parts


def facts(graph: OpGraph, op: Op) -> Facts:
    """What an op is, apart from its name and from where its inputs come from: attributes, inputs and outputs."""
    values = {f"input {port}": _about(graph.value(name), op.layer) for port, name in op.inputs.items()}
    values |= {f"output {port}": _shape(graph.value(name)) for port, name in op.outputs.items()}
    return {**op.attrs.attributes, **values}


def _about(value: Value, layer: int | None) -> str:
    """A value without the names that passes invent: those of the spec's tensors and of a batch's parts stay."""
    shape = _shape(value)
    if value.role == "weight":
        return f"{' + '.join(without_layer(part, layer) for part in value.parts or (value.name,))} {shape}"
    if value.role == "constant":
        numbers = ", ".join(f"{number:.6g}" for number in value.data[:4])
        more = f", ... {hash(value.data) & 0xFFFFFFFF:08x}" if len(value.data) > 4 else ""
        return f"constant {shape} ({numbers}{more})"
    return f"{value.name} {shape}" if value.role in ("input", "store") else shape


def _shape(value: Value) -> str:
    return f"[{', '.join(map(str, value.shape))}] {value.dtype}"


def pair_ops(a: OpGraph, b: OpGraph) -> dict[str, str]:
    """The name in B of each op of A that has a partner there."""
    graphs, parts = (a, b), (sections(a), sections(b))
    about = tuple({op.name: facts(graph, op) for op in graph.ops} for graph in graphs)
    names: dict[str, str] = {}
    for beside in (False, True):  # without neighbours first: many ops are told apart by their weights alone
        while more := _unlike_others(graphs, parts, about, names, beside):
            names |= more
    for section, ops in parts[0].items():
        partners = set(names.values())
        left = [(op, about[0][op.name]) for op in ops if op.name not in names]
        others = [(op, about[1][op.name]) for op in parts[1].get(section, []) if op.name not in partners]
        names |= _aligned(left, others)
        taken = set(names.values())
        for op, of_op in left:
            equal = (o.name for o, of in others if o.name not in taken and _alike(op, of_op, o, of) == 1)
            if op.name not in names and (partner := next(equal, None)) is not None:
                names[op.name] = partner
                taken.add(partner)
    return names


def _unlike_others(
    graphs: tuple[OpGraph, OpGraph],
    parts: tuple[dict[Section, list[Op]], dict[Section, list[Op]]],
    about: tuple[Mapping[str, Facts], ...],
    names: Mapping[str, str],
    beside: bool,
) -> dict[str, str]:
    """More pairs: ops that are equal, and like no other op of their layers that has no partner.

    Args:
        graphs: A and B.
        parts: their ops by sections.
        about: their facts by names.
        names: the pairs so far.
        beside: whether equal ops must also stand beside the same pairs.
    """
    paired = (names, {partner: partner for partner in names.values()})
    pairs: dict[str, str] = {}
    for section in parts[0]:
        by_key: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
        for graph, part, of, partners, keys in zip(graphs, parts, about, paired, by_key, strict=True):
            for op in part.get(section, []):
                if op.name not in partners:
                    near = _neighbours(graph, op, partners) if beside else []
                    keys.setdefault(repr((op.kind, sorted(of[op.name].items()), near)), []).append(op.name)
        for key, ours in by_key[0].items():
            theirs = by_key[1].get(key, [])
            if len(ours) == len(theirs) == 1:
                pairs[ours[0]] = theirs[0]
    return pairs


def _neighbours(graph: OpGraph, op: Op, partners: Mapping[str, str]) -> list[tuple[str, str]]:
    """The pairs that an op stands beside, by their names in B, each with the port between them."""
    makers = ((port, graph.producer(name)) for port, name in op.inputs.items())
    near = [(f"from {port}", partners.get(maker.name, "")) for port, maker in makers if maker is not None]
    for name in op.outputs.values():
        for user in graph.consumers(name):
            ports = (port for port, read in user.inputs.items() if read == name)
            near += [(f"to {port}", partners.get(user.name, "")) for port in ports]
    return sorted(near)


def _aligned(a: Sequence[tuple[Op, Facts]], b: Sequence[tuple[Op, Facts]]) -> dict[str, str]:
    """The best pairs of two lists in order."""
    likeness = [[_score(op, about, other, of) for other, of in b] for op, about in a]
    best = [[0.0] * (len(b) + 1) for _ in range(len(a) + 1)]  # of the ops from these on
    for i in range(len(a) - 1, -1, -1):
        for j in range(len(b) - 1, -1, -1):
            paired = likeness[i][j] + best[i + 1][j + 1] if likeness[i][j] else 0.0
            best[i][j] = max(paired, best[i + 1][j], best[i][j + 1])
    names: dict[str, str] = {}
    i = j = 0
    while i < len(a) and j < len(b):
        if likeness[i][j] and best[i][j] == likeness[i][j] + best[i + 1][j + 1]:
            names[a[i][0].name] = b[j][0].name
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return names


def _score(a: Op, facts_a: Facts, b: Op, facts_b: Facts) -> float:
    """0 for ops that cannot be a pair; else 1 and more, the more they have in common."""
    if a.kind != b.kind:
        return 0.0
    same_weights = _weights(facts_a) == _weights(facts_b)
    return 1 + _alike(a, facts_a, b, facts_b) + (_PER_WEIGHT if same_weights else 0.0)


def _alike(a: Op, facts_a: Facts, b: Op, facts_b: Facts) -> float:
    """Which share of their facts two ops have in common; 1: they are equal."""
    every = {**facts_a, **facts_b}
    same = sum(key in facts_a and key in facts_b and facts_a[key] == facts_b[key] for key in every)
    return same / len(every) if a.kind == b.kind else 0.0


def _weights(of: Mapping[str, Any]) -> list[str]:
    """The tensors that an op reads, without their shapes."""
    inputs = (str(about) for key, about in of.items() if key.startswith("input "))
    return [about.partition(" [")[0] for about in inputs if not about.startswith(("[", "constant"))]
