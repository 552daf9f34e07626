"""The descriptor of a step: the arrays of a `Batch` as int32 numbers, sent to the ranks that only execute.

Query tiles are not sent: ranks whose KV heads have unequal numbers of queries have programs with unequal tiles.
"""

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import ArenaGeometry
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.batch import MOST_TOPS, Batch, BlocksOfGroup, Int32Array, query_tiles_of
from mlxr.runtime.hosts.exchange import EXACT_IDS
from mlxr.runtime.hosts.host import Host

_COUNTS = 7
STATES = -1
"""In place of a group of layers in messages that read and write blocks: they are slots of states."""


class StepLimits(NamedTuple):
    """The largest step that a plan and its arena allow.

    Attributes:
        tokens: most tokens of a step.
        rows: most rows of logits.
        sequences: most sequences.
        query_tile: most tokens of a query tile of this plan.
        block_size: tokens of a block of the arena.
        num_blocks: blocks of the arena's first group.
        table: blocks of the longest sequence: columns of `Batch.block_tables`.
        state_slots: slots of states; 0: the model keeps none.
        state_columns: most columns of `Batch.state_table`.
        other_blocks: blocks of each group of layers after the first.
    """

    tokens: int
    rows: int
    sequences: int
    query_tile: int
    block_size: int
    num_blocks: int
    table: int
    state_slots: int = 0
    state_columns: int = 0
    other_blocks: tuple[int, ...] = ()

    @classmethod
    def of(cls, max_tokens: int, max_rows: int, query_tile: int, arena: ArenaGeometry) -> "StepLimits":
        """The limits of a plan, with the arena that was allocated."""
        return cls(
            max_tokens,
            max_rows,
            arena.max_sequences,
            query_tile,
            arena.block_size,
            arena.num_blocks,
            arena.max_blocks_per_sequence,
            arena.num_slots,
            arena.state_columns,
            tuple(group.num_blocks for group in arena.groups[1:]),
        )

    def blocks_of(self, group: int) -> int:
        """Blocks of a group, or slots (`STATES`).

        Raises:
            HostError: there is no such group.
        """
        if group == STATES:
            return self.state_slots
        blocks = (self.num_blocks, *self.other_blocks)
        if not 0 <= group < len(blocks):
            raise HostError(f"group {group} of layers, expected 0 to {len(blocks) - 1}")
        return blocks[group]

    @property
    def most_bytes(self) -> int:
        """Bytes of the largest descriptor."""
        numbers = 3 * self.tokens + 2 * self.sequences + 1 + self.sequences * self.table + self.rows
        numbers += len(self.other_blocks) * (self.tokens + self.sequences * self.table)
        if self.state_slots:
            numbers += self.sequences * self.state_columns
        return 4 * (_COUNTS + numbers)


def pack_step(batch: Batch, block_size: int) -> bytes:
    """The descriptor of a step, a few hundred bytes in decode: of block tables, only the columns that are in use.

    Args:
        batch: its token ids are sent if they are known. Of an `mx.array`, the descriptor only says that ranks get them
            by `Host.shared_ids`.
        block_size: tokens of a block of the arena.
    """
    columns = -(-int(batch.context_lens.max()) // block_size)
    tables = batch.block_tables[:, :columns]
    ids = () if isinstance(batch.tokens, mx.array) else (batch.tokens,)
    states = batch.state_table
    counts = (
        *(batch.num_tokens, batch.num_seqs, batch.num_rows, tables.shape[1]),
        *(0 if states is None else states.shape[1], batch.tops, not ids),
    )
    arrays = (
        np.array(counts, np.int32),
        *ids,
        batch.positions,
        batch.slots,
        batch.query_start,
        batch.context_lens,
        tables,
        *(() if states is None else (states,)),
        batch.logit_rows,
        *(array for slots, table in batch.others for array in (slots, table[:, :columns])),
    )
    return np.concatenate(arrays, axis=None, dtype=np.int32).tobytes()


def unpack_step(data: bytes | bytearray, limits: StepLimits, late_ids: Callable[[int], mx.array]) -> Batch:
    """The batch of a descriptor.

    Args:
        data: what `pack_step` gave.
        limits: of this rank's plan and arena.
        late_ids: gives so many token ids if the descriptor has none; see `Host.shared_ids`.

    Raises:
        HostError: it is no descriptor, or a step that this rank cannot run.
    """
    if len(data) % 4 or len(data) < 4 * _COUNTS:
        raise HostError(f"a step's descriptor has {len(data)} bytes, expected int32 numbers, at least {_COUNTS}")
    numbers = np.frombuffer(data, np.int32)
    tokens, sequences, rows, columns, state_columns, tops, late = numbers[:_COUNTS].tolist()
    per_sequence = (sequences + 1, sequences, sequences * columns, sequences * state_columns)
    of_others = (tokens, sequences * columns) * len(limits.other_blocks)
    lengths = (0 if late else tokens, tokens, tokens, *per_sequence, rows, *of_others)
    fits = 0 < tokens <= limits.tokens and 0 < sequences <= limits.sequences and 0 <= rows <= limits.rows
    fits = fits and 0 < columns <= limits.table and 0 <= tops <= MOST_TOPS and late in (0, 1)
    fits = fits and (2 <= state_columns <= limits.state_columns if limits.state_slots else not state_columns)
    if not fits or sum(lengths) != len(numbers) - _COUNTS:
        raise HostError(
            f"a step of {tokens} tokens of {sequences} sequences, {rows} rows, {columns} blocks, "
            f"{state_columns} columns of states and {tops} tops, ids late: {late}, in {len(numbers)} numbers "
            f"is not one that this rank can run: {limits}"
        )
    ends = np.cumsum(lengths)[:-1].tolist()
    ids, positions, slots, query_start, context, used, states, logit_rows, *others = np.split(numbers[_COUNTS:], ends)
    _check("positions", positions, columns * limits.block_size)
    of_groups = list(zip([slots, *others[::2]], [used, *others[1::2]], strict=True))
    for group, (places, table) in enumerate(of_groups):
        _check("slots", places, limits.blocks_of(group) * limits.block_size)
        _check("blocks", table, limits.blocks_of(group))
    _check("state slots", states, limits.state_slots, -1)
    _check("rows", logit_rows, tokens)
    _check("query starts", query_start, tokens + 1)
    if query_start[0] != 0 or query_start[-1] != tokens or (np.diff(query_start) < 1).any():
        raise HostError(f"query starts of a step of {tokens} tokens do not rise from 0 to these: {query_start[:8]}")
    _check("context lengths", context, columns * limits.block_size + 1)
    return Batch(
        tokens=late_ids(tokens) if late else ids,
        positions=positions,
        slots=slots,
        query_start=query_start,
        context_lens=context,
        block_tables=used.reshape(sequences, columns),
        logit_rows=logit_rows,
        query_tiles=query_tiles_of(query_start, limits.query_tile),
        query_tile=limits.query_tile,
        others=tuple(BlocksOfGroup(places, table.reshape(sequences, columns)) for places, table in of_groups[1:]),
        state_table=states.reshape(sequences, state_columns) if state_columns else None,
        tops=tops,
    )


def _check(what: str, values: Int32Array, end: int, begin: int = 0) -> None:
    if len(values) and not (values.min() >= begin and values.max() < end):
        raise HostError(f"{what} of a step are {values.min()} to {values.max()}, expected {begin} to {end - 1}")


def starts_ahead(host: Host) -> bool:
    """Whether they do, which all ranks answer in the same way: with one stage, on a host that pipelines.

    Ids reach the others by a sum over the ranks of a stage, so rank 0's reach no other stage.

    Args:
        host: of this rank.
    """
    if not host.pipelines or host.plan.rank is None:
        return False
    return host.plan.rank.pipeline == 1 and host.plan.vocab_size <= EXACT_IDS
