"""Every op kind of the graph as MLX ops: what `reference` runs, and what hosts borrow for single launches."""

from mlxr.runtime.hosts.mlx_ops.large import LARGE_OPS
from mlxr.runtime.hosts.mlx_ops.run_graph import run_graph
from mlxr.runtime.hosts.mlx_ops.table import MLX_OPS, evaluate
from mlxr.runtime.mlx_arrays import MLX_DTYPES

__all__ = ["LARGE_OPS", "MLX_DTYPES", "MLX_OPS", "evaluate", "run_graph"]
