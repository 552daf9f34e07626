"""Binds a batch to a plan: its arrays and dims, its phase, and the grids of its launches."""

from collections.abc import Mapping, Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import BATCH_DIMS, BatchDim, Launch, PhaseName, Plan
from mlxr.compiler.errors import RequestError
from mlxr.runtime.cache.sequence_states import NO_STATE
from mlxr.runtime.hosts.batch import Batch, Int32Array

Dims = Mapping[BatchDim, int]
BatchArrays = Mapping[str, npt.NDArray[np.int32] | npt.NDArray[np.uint32] | npt.NDArray[np.float32] | mx.array]


def phase_of(plan: Plan, batch: Batch) -> PhaseName:
    """Which phase runs a batch.

    Raises:
        RequestError: the batch is larger than the plan's activation memory allows.
    """
    wanted = (batch.num_tokens, batch.num_rows, batch.num_seqs)
    limits = (plan.max_tokens, plan.max_rows, plan.arena.max_sequences)
    if wanted[0] > limits[0] or wanted[1] > limits[1] or wanted[2] > limits[2]:
        raise RequestError(
            "a step of {} tokens, {} rows of logits and {} sequences".format(*wanted)
            + "; the plan's limits are {}, {} and {}".format(*limits)
        )
    return "decode" if batch.is_decode and batch.num_rows else "prefill"


def batch_dims(batch: Batch) -> Dims:
    """The numbers of a batch that grids, conditions and shapes depend on."""
    return {
        "tokens": batch.num_tokens,
        "seqs": batch.num_seqs,
        "rows": batch.num_rows,
        "tiles": batch.num_tiles,
        "context": max(batch.context_lens.tolist()),
    }


def batch_arrays(batch: Batch, columns: int | None = None, state_columns: int | None = None) -> BatchArrays:
    """A batch's metadata by the plan's buffer names; the token ids may be on the device.

    Args:
        batch: the step.
        columns: of the block tables, as kernels get them; None: as many as the batch has. All else has its exact size.
        state_columns: of the table of states.
    """
    arrays: dict[str, Int32Array | npt.NDArray[np.uint32] | npt.NDArray[np.float32] | mx.array] = {
        "token_ids": batch.tokens,
        "positions": batch.positions,
        "slots": batch.slots,
        "query_start": batch.query_start,
        "context_lens": batch.context_lens,
        "logit_rows": batch.logit_rows,
        "query_tiles": batch.query_tiles,
        "dims": batch.dims,
        "block_tables": _tables(batch.block_tables, columns),
    }
    if batch.state_table is not None:
        arrays["state_table"] = _tables(batch.state_table, state_columns, NO_STATE)
    if batch.token_types is not None:
        arrays["token_types"] = batch.token_types
    arrays |= batch.of_adapters
    if batch.others:
        arrays |= {name: _tables(a, columns) if a.ndim == 2 else a for name, a in batch.blocks.items()}
    return arrays


def _tables(tables: Int32Array, columns: int | None, fill: int = 0) -> Int32Array:
    """Tables as kernels read them: the number of columns, then the rows: [1 + seqs * columns]."""
    seqs, width = tables.shape
    columns = width if columns is None else columns
    numbers = np.full(1 + seqs * columns, fill, np.int32) if fill else np.zeros(1 + seqs * columns, np.int32)
    numbers[0] = columns
    numbers[1:].reshape(seqs, columns)[:, :width] = tables
    return numbers


def grid_of(launch: Launch, dims: Dims) -> tuple[int, int, int] | None:
    """The threadgroups of a launch for a batch, on hosts without MLX's functions; None if it does not run."""
    return launch.kernel_call.grid(dims) if launch.runs(dims, library=False) else None


def from_buffer(block_ids: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs (source, target) with which the copy kernel writes its buffer's blocks, in order, to these blocks."""
    return [(-1 - place, block_id) for place, block_id in enumerate(block_ids)]


def shape_of(shape: tuple[int | str, ...], dims: Dims) -> tuple[int, ...]:
    """The shape of a buffer for a batch."""
    return tuple(dims[BATCH_DIMS[d]] if isinstance(d, str) else d for d in shape)
