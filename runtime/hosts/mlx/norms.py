"""Casts norms' weights to the types in which the MLX ops of large batches compute, once and not in each step."""

from collections.abc import Mapping

import mlx.core as mx

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.hosts.mlx_ops import MLX_DTYPES
from mlxr.runtime.hosts.mlx_ops.large import compute_type

NORM_PORTS = ("norm", "norm_bias")
"""The ports of an op that take the weights of its norm."""


def norms_for_mlx(artifact: Artifact, weights: Mapping[str, mx.array]) -> dict[tuple[str, str], dict[str, mx.array]]:
    """The norm weights of launches that may run as MLX ops, in the type in which these compute.

    All are evaluated: a trace of a step would compute lazy ones again each time.

    Args:
        artifact: the compiled model.
        weights: the weights as kernels read them, by name.

    Returns:
        The weights by port, for each pair of a phase's and an op's name.
    """
    cast: dict[tuple[str, mx.Dtype], mx.array] = {}
    by_op: dict[tuple[str, str], dict[str, mx.array]] = {}
    for phase in artifact.plan.program("metal").phases:
        graph = artifact.graph(phase.name)
        types = {buffer.name: MLX_DTYPES[str(buffer.dtype)] for buffer in phase.buffers}
        types |= {name: weight.dtype for name, weight in weights.items()}
        for launch in phase.launches:
            op = graph.op(launch.op)
            names = {**op.inputs, **dict(launch.mlx_inputs)}
            if not launch.mlx or launch.feeds_mlx or "norm" not in names:
                continue
            dtype = compute_type(types[names["x"]], types[names["weight"]], MLX_DTYPES[str(graph.value(op.out).dtype)])
            norms = by_op.setdefault((phase.name, launch.op), {})
            for port in (port for port in NORM_PORTS if port in names):
                key = (names[port], dtype)
                norms[port] = cast.setdefault(key, weights[names[port]].astype(dtype))
    mx.eval(list(cast.values()))
    return by_op
