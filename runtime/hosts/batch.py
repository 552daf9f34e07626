"""The batch: metadata of one step, token-flat over all its sequences.

Decode, prefill, chunked prefill and any mixture are this one form. Tokens of a sequence are adjacent and in order;
sequences keep the order of the requests.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Literal, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import of_group
from mlxr.compiler.errors import RequestError
from mlxr.runtime.cache.pager import Pager

Int32Array = npt.NDArray[np.int32]

Rows = Literal["last", "all", "none"]
"""Which of a sequence's tokens give a row of logits."""

MOST_TOPS = 256
"""Most of `Batch.tops`."""
NO_ADAPTER = (-1, 0.0)
"""Slot and scale of a sequence that uses no adapter; see `Batch.using`."""
_LOWEST, _HIGHEST = int(np.iinfo(np.int32).min), int(np.iinfo(np.int32).max)


class BatchRequest(NamedTuple):
    """One sequence's part of a step: its next tokens, and the logits wanted of them."""

    seq_id: int
    tokens: Sequence[int]
    start: int
    """Position of the first token: the tokens already in the arena."""
    rows: Rows = "last"
    """Which of the tokens give a row of logits."""
    undo: int = 0
    """How many of the last tokens may be taken back after the step, `MOST_UNDONE` at most: models with states must
    know."""
    second: int | None = None
    """Of two texts in one, the number of the first token of the second, in a model that tells them apart; None: of one
    text."""


class DecodeRequests(NamedTuple):
    """The parts of a step in which each sequence has one token, whose logits are wanted: columns of `BatchRequest`s.

    Most steps are of this kind, and are built in less time from these.
    """

    seq_ids: Sequence[int]
    tokens: Sequence[int]
    starts: list[int]


Requests = Sequence[BatchRequest] | DecodeRequests
"""The parts of a step."""


class BlocksOfGroup(NamedTuple):
    """Where a group of layers after the first has the tokens of a step."""

    slots: Int32Array
    """Like `Batch.slots`."""
    block_tables: Int32Array
    """Like `Batch.block_tables`; 0 too where a window has passed."""


class AdapterRows(NamedTuple):
    """Which adapter each token of a step uses."""

    ids: Int32Array
    """[tokens], its slot; -1: none"""
    scales: npt.NDArray[np.float32]
    """[tokens], by what it is multiplied"""


class PackedArrays(NamedTuple):
    """Arrays that lie in one, in the order in which kernels' arguments are named, with gaps."""

    numbers: Int32Array
    places: dict[str, slice]


@dataclass(frozen=True, eq=False)
class Batch:
    """Metadata of one step; arrays are int32, exact in size and read-only.

    `kernel_input` makes the form that kernels take.
    """

    tokens: Int32Array | mx.array
    """[tokens]; an `mx.array` may still be computed, and reading its elements waits for them"""
    positions: Int32Array
    """[tokens], counted from the start of each sequence"""
    slots: Int32Array
    """[tokens], block id * block_size + offset: where the token's K and V go"""
    query_start: Int32Array
    """[seqs + 1], sequence s has tokens query_start[s] to query_start[s + 1]"""
    context_lens: Int32Array
    """[seqs], tokens in the arena including this step's"""
    block_tables: Int32Array
    """[seqs, max_blocks], unused entries 0; of a pager with short tables, as many columns as are used"""
    logit_rows: Int32Array
    """[rows], indices into tokens, ascending"""
    query_tiles: Int32Array
    """[tiles, 2], (sequence, index of the tile's first token); it ends query_tile tokens on, or with its sequence"""
    query_tile: int
    """Most tokens of a tile."""
    state_table: Int32Array | None = None
    """[seqs, 1 + writes], of a model with states: column 0 is the slot that holds the state before the sequence's first
    token; column j the slot into which the state after its j-th last token goes; or `NO_STATE`. A slot is in one column
    at most, but several sequences may read the same."""
    others: tuple[BlocksOfGroup, ...] = ()
    """Of each group of layers after the first."""
    token_types: Int32Array | None = None
    """[tokens], 1 for those of the second of two texts in one, else 0; None: all are 0"""
    tops: int = 0
    """How many of the greatest logits of each row are enough, of equal ones the first; 0: all. The parts of a model do
    not exchange the others, which are then -inf. Hosts of whole models ignore it."""
    adapters: AdapterRows | None = None
    """Of a model that is compiled for adapters; None: no token uses one, or the model has no place for any."""
    slots_of_steps: tuple[Int32Array, ...] = ()
    """Of several decode steps, each of which takes the tokens that are chosen in the one before: by group the slots in
    each of them, [steps, seqs]. All else is that of the first. Empty: it is one step."""
    packed: PackedArrays | None = None
    """All that the host reads of it, if it is one that the host itself has made."""

    def __post_init__(self) -> None:
        """Freezes the arrays too."""
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(False)  # type: ignore[call-arg]  # by position, which is faster

    @classmethod
    def build(
        cls,
        requests: Requests,
        pager: Pager,
        query_tile: int,
        tokens: mx.array | None = None,
        steps: int = 1,
    ) -> "Batch":
        """Appends the requests' tokens to their sequences and makes the step's arrays; all requests or none.

        The caller has checked token ids against the vocabulary; here they are only checked to be int32. The caller then
        takes the pager's copies (`take_copies`).

        Args:
            requests: the sequences' parts of the step.
            pager: of the arena; its sequences grow.
            query_tile: most tokens of a tile.
            tokens: [tokens], int32: ids that the device has or is computing. Of the requests' own ids, only the number
                then matters.
            steps: how many steps it is for; see `slots_of_steps`. Several are of requests with one token each.

        Raises:
            RequestError: no request or no tokens, a token id beyond int32, a sequence twice, a wrong start, or unknown
                `rows`.
            ArenaFullError: the arena cannot hold all requests; nothing has been appended.
            ArenaError: unknown sequence, or one beyond the context; nothing has been appended.
        """
        assert query_tile >= 1, f"query_tile {query_tile} must be >= 1"
        decode = requests if isinstance(requests, DecodeRequests) else _as_decode(requests)
        if decode is not None and (batch := cls._build_decode(decode, pager, query_tile, tokens, steps)):
            return batch
        if isinstance(requests, DecodeRequests):
            requests = [BatchRequest(i, [token], start) for i, token, start in zip(*requests, strict=True)]
        check_requests(requests, pager)
        seq_ids, ids, first, rows, undo, second = zip(*requests, strict=True)
        counts = list(map(len, ids))
        assert tokens is None or (tokens.shape == (sum(counts),) and tokens.dtype == mx.int32), "[tokens], int32"
        assert steps == 1 or max(counts) == 1, "several steps have one token of each sequence"
        if tokens is None:
            numbers = token_ids_of(requests)
        pager.grow_all([(seq_id, count + steps - 1) for seq_id, count in zip(seq_ids, counts, strict=True)])

        starts = np.array(first, np.int32)
        if max(counts) == 1:
            positions, context_lens = starts, starts + 1
            query_start, query_tiles, _ = layout_of_decode(len(counts))
        elif len(counts) == 1:
            query_start, context_lens = np.array([0, *counts], np.int32), np.array([first[0] + counts[0]], np.int32)
            positions = np.arange(first[0], context_lens[0], dtype=np.int32)
            query_tiles = query_tiles_of(query_start, query_tile)
        else:
            of_seq = np.array(counts, np.int32)
            query_start = np.zeros(len(requests) + 1, np.int32)
            np.cumsum(of_seq, out=query_start[1:])
            positions = np.repeat(starts - query_start[:-1], of_seq) + np.arange(query_start[-1], dtype=np.int32)
            context_lens, query_tiles = starts + of_seq, query_tiles_of(query_start, query_tile)
        tables, size = pager.block_tables(seq_ids), pager.block_size
        by_step = slots_of_steps(tables, starts, steps, size) if steps > 1 else None
        return cls(
            tokens=numbers if tokens is None else tokens,
            positions=positions,
            slots=_slots(tables, query_start, positions, size) if by_step is None else by_step[0],
            query_start=query_start,
            context_lens=context_lens,
            block_tables=tables,
            logit_rows=_logit_rows(rows, query_start),
            query_tiles=query_tiles,
            query_tile=query_tile,
            state_table=None if pager.states is None else pager.states.step(seq_ids, counts, undo),
            others=(others := _of_others(pager, seq_ids, query_start, positions)),
            token_types=_token_types(second, starts, query_start),
            slots_of_steps=() if by_step is None else (by_step, *_slots_of_steps(others, pager, positions, steps)),
        )

    @classmethod
    def _build_decode(
        cls, requests: DecodeRequests, pager: Pager, query_tile: int, tokens: mx.array | None, steps: int
    ) -> "Batch | None":
        """`build` of requests with nothing special about them; None of others, and then nothing has changed."""
        seq_ids, ids, starts = requests
        if not ids or min(ids) < _LOWEST or max(ids) > _HIGHEST:
            return None
        slots = pager.append_to_each(seq_ids, starts, steps)
        if slots is None:
            return None
        count = len(ids)
        assert tokens is None or (tokens.shape == (count,) and tokens.dtype == mx.int32), "[tokens], int32"
        # All at once: NumPy's calls are slow for so few numbers.
        numbers = np.array([*ids, *starts, *[start + 1 for start in starts], *slots], np.int32)
        query_start, query_tiles, logit_rows = layout_of_decode(count)
        positions = numbers[count : 2 * count]
        others = _of_others(pager, seq_ids, query_start, positions)
        return cls(
            tokens=numbers[:count] if tokens is None else tokens,
            positions=positions,
            slots=numbers[3 * count : 4 * count],
            query_start=query_start,
            context_lens=numbers[2 * count : 3 * count],
            block_tables=pager.block_tables(seq_ids),
            logit_rows=logit_rows,
            query_tiles=query_tiles,
            query_tile=query_tile,
            state_table=None if pager.states is None else pager.states.step_one_each(seq_ids),
            others=others,
            slots_of_steps=()
            if steps == 1
            else (numbers[3 * count :].reshape(steps, count), *_slots_of_steps(others, pager, positions, steps)),
        )

    @property
    def num_steps(self) -> int:
        """How many steps it is for."""
        return len(self.slots_of_steps[0]) if self.slots_of_steps else 1

    def step(self, index: int, tokens: Int32Array | mx.array) -> "Batch":
        """One of several steps, counted from 0, with its token ids."""
        if not self.slots_of_steps:
            return self if tokens is self.tokens else replace(self, tokens=tokens)
        first, *others = self.slots_of_steps
        return replace(
            self,
            tokens=tokens,
            positions=self.positions + np.int32(index),
            slots=first[index],
            context_lens=self.context_lens + np.int32(index),
            others=tuple(own._replace(slots=by_step[index]) for own, by_step in zip(self.others, others, strict=True)),
            slots_of_steps=(),
        )

    @property
    def blocks(self) -> dict[str, Int32Array]:
        """Slots and block tables of all groups, by the names of their values in graphs."""
        found = {"slots": self.slots, "block_tables": self.block_tables}
        for group, blocks in enumerate(self.others, 1):
            found |= {of_group(name, group): array for name, array in blocks._asdict().items()}
        return found

    def using(self, adapters: Sequence[tuple[int, float]]) -> "Batch":
        """The same step, in which the tokens of each sequence use an adapter: its slot, or -1, and its scale."""
        slots, scales = zip(*adapters, strict=True)
        counts = np.diff(self.query_start)
        rows = AdapterRows(
            np.repeat(np.array(slots, np.int32), counts), np.repeat(np.array(scales, np.float32), counts)
        )
        return replace(self, adapters=rows)

    @property
    def of_adapters(self) -> dict[str, Int32Array | npt.NDArray[np.float32]]:
        """Which adapters tokens use, by the names of the values in graphs; empty: none is said."""
        return {} if self.adapters is None else {f"adapter_{name}": a for name, a in self.adapters._asdict().items()}

    @property
    def with_adapters(self) -> "Batch":
        """This, with the adapters that its tokens use, of which there may be none."""
        return self if self.adapters is not None else self.using([NO_ADAPTER] * self.num_seqs)

    @property
    def with_types(self) -> "Batch":
        """This, with the types of its tokens, which may all be 0."""
        return self if self.token_types is not None else replace(self, token_types=np.zeros(self.num_tokens, np.int32))

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return len(self.tokens)

    @property
    def num_seqs(self) -> int:
        """Sequences of the step."""
        return len(self.context_lens)

    @property
    def num_rows(self) -> int:
        """Rows of logits asked for."""
        return len(self.logit_rows)

    @property
    def num_tiles(self) -> int:
        """Query tiles."""
        return len(self.query_tiles)

    @property
    def is_decode(self) -> bool:
        """Whether every sequence has exactly one token."""
        return self.num_tokens == self.num_seqs

    @property
    def dims(self) -> npt.NDArray[np.uint32]:
        """The counts that kernels read, u32[8]: tokens, seqs, rows, tiles, 0, 0, 0, 0."""
        counts = (self.num_tokens, self.num_seqs, self.num_rows, self.num_tiles)
        return np.array([*counts, 0, 0, 0, 0], dtype=np.uint32)


def _as_decode(requests: Sequence[BatchRequest]) -> DecodeRequests | None:
    """The columns of requests that are no more than one token and its logits each; None of others."""
    if not requests:
        return None
    seq_ids, ids, starts, rows, undo, second = zip(*requests, strict=True)
    if (
        any(undo)
        or second.count(None) < len(second)
        or rows.count("last") < len(rows)
        or max(map(len, ids)) > 1
        or not all(ids)
    ):
        return None
    return DecodeRequests(list(seq_ids), [token for (token,) in ids], list(starts))


def check_requests(requests: Sequence[BatchRequest], pager: Pager) -> None:
    """Refuses requests that are no step.

    Raises:
        RequestError: see `Batch.build`.
        ArenaError: unknown sequence.
    """
    if not requests:
        raise RequestError("a batch has no requests, expected at least one")
    seen: set[int] = set()
    for seq_id, tokens, start, rows, _, _ in requests:
        if len(tokens) == 0:
            raise RequestError(f"sequence {seq_id} has no tokens in this batch, expected at least one")
        if seq_id in seen:
            raise RequestError(f"sequence {seq_id} is in this batch twice; join its tokens into one request")
        if start != pager.length(seq_id):
            raise RequestError(
                f"sequence {seq_id} starts at position {start}, but the arena has {pager.length(seq_id)} tokens of it; "
                "send the tokens that follow these, or truncate the sequence"
            )
        if rows not in ("last", "all", "none"):
            raise RequestError(f"sequence {seq_id} wants logits {rows!r}, expected 'last', 'all' or 'none'")
        seen.add(seq_id)


def token_ids_of(requests: Sequence[BatchRequest]) -> Int32Array:
    """The token ids of all requests, joined.

    Raises:
        RequestError: one is beyond int32.
    """
    try:
        return _int32s(request.tokens for request in requests)
    except struct.error:
        for request in requests:
            low, high = min(request.tokens), max(request.tokens)
            if low < _LOWEST or high > _HIGHEST:
                what = f"sequence {request.seq_id} has the token id {low if low < _LOWEST else high}"
                raise RequestError(f"{what}, expected an id of the vocabulary") from None
        raise


def _of_others(
    pager: Pager, seq_ids: Sequence[int], query_start: Int32Array, positions: Int32Array
) -> tuple[BlocksOfGroup, ...]:
    """See `Batch.others`."""
    if not pager.others:
        return ()
    tables = [pager.block_tables(seq_ids, group) for group in range(1, len(pager.others) + 1)]
    return tuple(BlocksOfGroup(_slots(table, query_start, positions, pager.block_size), table) for table in tables)


def _slots(table: Int32Array, query_start: Int32Array, positions: Int32Array, size: int) -> Int32Array:
    """The slots of a step's tokens, by block tables: [tokens]."""
    if len(table) == 1:
        first, skipped = divmod(int(positions[0]), size)
        used = table[0, first:]
        of_blocks: Int32Array = np.add.outer(used * np.int32(size), np.arange(size, dtype=np.int32))
        return of_blocks.reshape(-1)[skipped : skipped + len(positions)]
    sequence = np.repeat(np.arange(len(table)), np.diff(query_start))
    blocks: Int32Array = table[sequence, positions // np.int32(size)]
    return blocks * np.int32(size) + positions % np.int32(size)


def _slots_of_steps(
    others: Sequence[BlocksOfGroup], pager: Pager, positions: Int32Array, steps: int
) -> Iterator[Int32Array]:
    """`Batch.slots_of_steps` of the groups after the first, for one token of each sequence in each step."""
    for group in others:
        yield slots_of_steps(group.block_tables, positions, steps, pager.block_size)


def slots_of_steps(table: Int32Array, starts: Int32Array, count: int, size: int) -> Int32Array:
    """The slots of one token of each sequence in each of some steps, by block tables: [steps, sequences]."""
    positions = starts + np.arange(count, dtype=np.int32)[:, None]
    blocks: Int32Array = table[np.arange(len(starts)), positions // np.int32(size)]
    return blocks * np.int32(size) + positions % np.int32(size)


def _logit_rows(rows: Sequence[Rows], query_start: Int32Array) -> Int32Array:
    if rows.count("last") == len(rows):
        return query_start[1:] - np.int32(1)
    bounds = query_start.tolist()
    return _int32s(map(_rows, rows, bounds[:-1], bounds[1:]))


def _rows(rows: Rows, start: int, stop: int) -> range:
    if rows == "none":
        return range(0)
    return range(stop - 1 if rows == "last" else start, stop)


def _token_types(second: Sequence[int | None], starts: Int32Array, query_start: Int32Array) -> Int32Array | None:
    """See `Batch.token_types`."""
    if second.count(None) == len(second):
        return None
    types = np.zeros(query_start[-1], np.int32)
    for seq, begin in enumerate(second):
        if begin is not None:
            types[query_start[seq] + max(0, begin - int(starts[seq])) : query_start[seq + 1]] = 1
    return types


@cache
def layout_of_decode(num_seqs: int) -> tuple[Int32Array, Int32Array, Int32Array]:
    """`query_start`, `query_tiles` and `logit_rows` of sequences with one token each."""
    start = np.arange(num_seqs + 1, dtype=np.int32)
    return start, np.stack([start[:-1], start[:-1]], axis=1), start[:-1]


def query_tiles_of(query_start: Int32Array, query_tile: int) -> Int32Array:
    """[tiles, 2]: the tiles of each sequence in turn; see `Batch.query_tiles`.

    Args:
        query_start: as in `Batch`.
        query_tile: most tokens of a tile.
    """
    if len(query_start) == 2:
        tiles_of_one = np.zeros((-(-int(query_start[1]) // query_tile), 2), np.int32)
        tiles_of_one[:, 1] = np.arange(0, query_start[1], query_tile, dtype=np.int32)
        return tiles_of_one
    counts = np.diff(query_start)
    if counts.max() <= query_tile and counts.all():
        return np.stack([layout_of_decode(len(counts))[2], query_start[:-1]], axis=1)
    tiles = -(-counts // query_tile)
    sequence = np.repeat(np.arange(len(tiles), dtype=np.int32), tiles)
    before = np.cumsum(tiles) - tiles
    within = np.arange(len(sequence), dtype=np.int32) - np.repeat(before, tiles)
    return np.stack([sequence, query_start[sequence] + query_tile * within], axis=1).astype(np.int32)


def _int32s(parts: Iterable[Iterable[int]]) -> Int32Array:
    """The numbers of all parts, joined."""
    numbers = [*chain.from_iterable(parts)]
    return np.frombuffer(struct.pack(f"={len(numbers)}i", *numbers), np.int32)  # NumPy takes longer to read a list
