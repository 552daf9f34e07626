"""Every op kind of the graph as MLX ops: what `reference` runs, and what hosts borrow for single launches."""

from mlxr.runtime.mlx_arrays import MLX_DTYPES
from mlxr.runtime.mlx_ops.dense import evaluate_projection
from mlxr.runtime.mlx_ops.run_graph import run_graph
from mlxr.runtime.mlx_ops.table import MLX_OPS, evaluate

__all__ = ["MLX_DTYPES", "MLX_OPS", "evaluate", "evaluate_projection", "run_graph"]
