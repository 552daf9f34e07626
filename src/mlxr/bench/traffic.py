"""How many bytes a decode step has to read, which limits its speed."""

from mlxr.compiler.artifact import ArenaGeometry, Artifact, KernelCall, OpGraph
from mlxr.compiler.ir.ops.experts import ExpertProduct


def weight_bytes(artifact: Artifact, target: str, rows: int = 1) -> int:
    """Bytes of weights that a decode step reads, each once, on a host of a target.

    Args:
        artifact: the compiled model.
        target: the target whose program the host runs.
        rows: sequences of the step; of the embedding table it reads their rows alone, unless it is the output too, and
            of experts those that they choose, taken to be different ones.
    """
    program = artifact.plan.program(target)
    weights = program.library.tensors if program.library else artifact.plan.weights
    sizes = {weight.name: (weight.size_bytes, weight.shape[0]) for weight in weights}
    decode = program.phase("decode").launches
    launches = [(la.kernel, la.inputs) for la in decode if isinstance(la.body, KernelCall)]
    whole = {name for kernel, inputs in launches if not kernel.startswith("embed_") for name in inputs}
    table = {name for kernel, inputs in launches if kernel.startswith("embed_") for name in inputs} - whole
    shares = _shares(artifact.graph("decode"), rows)
    read = sum(int(sizes[name][0] * shares.get(name, 1.0)) for name in whole if name in sizes)
    return read + sum(sizes[name][0] // sizes[name][1] * rows for name in table if name in sizes)


def _shares(graph: OpGraph, rows: int) -> dict[str, float]:
    """The share that a step reads of the experts' weights, by the names of weights and of their parts."""
    shares: dict[str, float] = {}
    for op, experts in graph.ops_of(ExpertProduct):
        for weight in (graph.value(op.inputs[port]) for port in ("weight", "bias") if port in op.inputs):
            share = min(1.0, float(rows * experts.chosen_per_token(graph.use(op))))
            shares |= dict.fromkeys((weight.name, *weight.parts), share)
    return shares


def cache_bytes(arena: ArenaGeometry, tokens: int, sequences: int = 1) -> int:
    """Bytes of the stores that a decode step reads: all tokens, or of groups with a window those that are in it.

    Args:
        arena: the arena.
        tokens: of each sequence.
        sequences: of the step.
    """
    parts = ((part.unit_bytes, arena.groups[part.group].window) for part in arena.allocations if part.group is not None)
    return sum(sequences * min(tokens, window or tokens) * size // arena.block_size for size, window in parts)
