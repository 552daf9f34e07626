"""A batch as the C program takes it."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.cpu.library import CBatch, CBlocks


def c_batch(
    program: int,
    batch: Batch,
    tokens: npt.NDArray[np.int32],
    logits: npt.NDArray[np.float32],
    links: int,
    second: int,
) -> CBatch:
    """The structure of a batch, whose arrays must outlive it.

    Args:
        program: 0: one new token of each sequence; 1: any batch.
        batch: its metadata.
        tokens: [tokens], its token ids.
        logits: [rows, output width]: where its logits go.
        links: the address of `mlxr_links`; 0: the model has one rank.
        second: the address of a batch that takes turns with this one; 0: there is none.
    """
    states = batch.state_table
    return CBatch(
        program,
        len(tokens),
        batch.num_seqs,
        batch.num_rows,
        _address(tokens),
        _address(batch.positions),
        None if batch.token_types is None else _address(batch.token_types),
        _address(batch.query_start),
        _address(batch.context_lens),
        _groups(batch),
        None if states is None else _address(states),
        0 if states is None else states.shape[1],
        _address(batch.logit_rows),
        _address(logits),
        links,
        second,
        *(() if batch.adapters is None else map(_address, batch.adapters)),
    )


def next_c_batch(structure: CBatch, before: Batch, batch: Batch, tokens: npt.NDArray[np.int32]) -> CBatch | None:
    """`c_batch` from the structure of the step before, in less time; None: they differ in more than their tokens.

    Args:
        structure: of the step before.
        before: its metadata.
        batch: the metadata of this one.
        tokens: [tokens], its token ids.
    """
    if (
        batch.query_start is not before.query_start
        or batch.logit_rows is not before.logit_rows
        or batch.block_tables is not before.block_tables
        or batch.others
        or batch.state_table is not None
        or batch.token_types is not None
        or batch.adapters is not None
    ):
        return None
    found = CBatch.from_buffer_copy(structure)
    found.token_ids = _address(tokens)
    found.positions = _address(batch.positions)
    found.context_lens = _address(batch.context_lens)
    found.groups = _groups(batch)
    return found


def _groups(batch: Batch) -> "ctypes.Array[CBlocks]":
    first = CBlocks(_address(batch.slots), _address(batch.block_tables), batch.block_tables.shape[1])
    others = (CBlocks(_address(b.slots), _address(b.block_tables), b.block_tables.shape[1]) for b in batch.others)
    return (CBlocks * (1 + len(batch.others)))(first, *others)


def _address(array: npt.NDArray[Any]) -> int:
    return array.ctypes.data
