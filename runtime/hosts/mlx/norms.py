"""Norms' weights as the MLX ops of large batches take them, cast once for a host and not in each step."""

from collections.abc import Mapping

import mlx.core as mx

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.hosts.mlx_ops import MLX_DTYPES
from mlxr.runtime.hosts.mlx_ops.large import compute_type

NORM_PORTS = ("norm", "norm_bias")
"""Of an op, what it normalises with."""


def norms_for_mlx(artifact: Artifact, weights: Mapping[str, mx.array]) -> dict[tuple[str, str], dict[str, mx.array]]:
    """What launches that may run as MLX ops normalise with, in the type that these compute in.

    All are computed: a trace of a step would compute again, each time, what was left to be computed.

    Args:
        artifact: the compiled model.
        weights: as kernels read them, by name.

    Returns:
        By the names of the step and of the op: norms by port.
    """
    cast: dict[tuple[str, mx.Dtype], mx.array] = {}
    found: dict[tuple[str, str], dict[str, mx.array]] = {}
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
            norms = found.setdefault((phase.name, launch.op), {})
            for port in (port for port in NORM_PORTS if port in names):
                key = (names[port], dtype)
                norms[port] = cast.setdefault(key, weights[names[port]].astype(dtype))
    mx.eval(list(cast.values()))
    return found
