"""Every op kind of the graph as MLX ops: what `reference` runs, and what hosts borrow for single launches."""

from mlxr.runtime.hosts.mlx_ops.large import evaluate_large
from mlxr.runtime.hosts.mlx_ops.run_graph import arena_layer, run_graph
from mlxr.runtime.hosts.mlx_ops.table import evaluate
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer
from mlxr.runtime.mlx_arrays import MLX_DTYPES

__all__ = ["MLX_DTYPES", "ArenaLayer", "arena_layer", "evaluate", "evaluate_large", "run_graph"]
