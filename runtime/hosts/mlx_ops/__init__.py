"""Every op kind of the graph as MLX ops: what host `reference` runs."""

from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.mlx_ops.run_graph import Observer, arena_layer, run_graph
from mlxr.runtime.hosts.mlx_ops.table import evaluate
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer

__all__ = ["MLX_DTYPES", "ArenaLayer", "Observer", "arena_layer", "evaluate", "run_graph"]
