"""The arena's bytes in tests: filled with NaN, written by slot, compared slot by slot."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import Allocation, of_group
from mlxr.runtime.arrays.mlx_arrays import Bits
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.hosts.mlx_ops.cache_rows import decode_rows, encode_rows
from mlxr_tests.specs import floats
from mlxr_tests.tolerances import Mismatch, check_op

_NAN_BITS = {"f32": 0x7FC00000, "f16": 0x7E00, "bf16": 0x7FC0, "q8": 0xFF, "q4": 0xFF, "q4_keys": 0xFF}


_views: WeakKeyDictionary[Arena, list[tuple[Allocation, Bits]]] = WeakKeyDictionary()


def _bits(arena: Arena) -> list[tuple[Allocation, Bits]]:
    """The allocations as bits: views, cached because MLX computes each."""
    if arena not in _views:
        bits = arena.bits()
        _views[arena] = [(part, bits[part.name]) for part in arena.geometry.allocations]
    return _views[arena]


def nan_arena(arena: Arena) -> Arena:
    """The arena with every element NaN (in q8 and q4, every scale), so that a read of an unwritten slot shows."""
    for part, bits in _bits(arena):
        bits[...] = _NAN_BITS[str(part.dtype)]
    return arena


def write_slots(arena: Arena, slots: Iterable[int], rng: np.random.Generator) -> None:
    """Writes random numbers into K and V of these slots, in every layer."""
    g = arena.geometry
    block, place = np.divmod(np.fromiter(slots, dtype=np.int64), g.block_size)
    for part, view in _bits(arena):
        row = part.row.shape
        numbers = rng.standard_normal((len(block), part.num_layers, *row), dtype=np.float32)
        rows = encode_rows(mx.array(numbers), str(part.dtype))
        if g.layout == "block":
            view[block, :, place] = rows
        else:
            view[:, block, place] = rows.swapaxes(0, 1)


def copy_arena(source: Arena, target: Arena) -> None:
    """Copies the bytes of one arena into another of the same geometry."""
    for (_, rows), (_, copies) in zip(_bits(source), _bits(target), strict=True):
        copies[...] = rows


def copy_slots(source: Arena, target: Arena, written: Mapping[Any, set[int]]) -> None:
    """Copies the bytes of these slots of these layers from one arena into another of the same geometry."""
    geometry = source.geometry
    for (part, rows), (_, copies) in zip(_bits(source), _bits(target), strict=True):
        for layer, slots in written.items():
            if geometry.group_of(layer) == part.group:
                at = geometry.place(part.store, layer)[1]
                block, place = np.divmod(sorted(slots), geometry.block_size)
                _by_block(target, copies)[at, block, place] = _by_block(source, rows)[at, block, place]


def snapshot(arena: Arena) -> dict[str, Bits]:
    """A copy of each allocation as bits, [layers, slots, kv_heads, row_elements]."""
    return {part.name: _by_slot(arena, part, bits).copy() for part, bits in _bits(arena) if part.group is not None}


def check_block_io(host: Host) -> None:
    """Checks that a host reads and writes the bytes of whole blocks, and no others.

    Raises:
        Mismatch: other bytes are read, or are in the arena afterwards.
    """
    geometry, rng = host.arena.geometry, np.random.default_rng(0)

    def by_block() -> "np.ndarray[Any, np.dtype[np.uint8]]":
        mx.eval(host.arena.token)
        parts = [np.ascontiguousarray(bits).view(np.uint8) for bits in snapshot(host.arena).values()]
        layers = [part.reshape(geometry.num_layers, geometry.num_blocks, -1).swapaxes(0, 1) for part in parts]
        return np.concatenate([part.reshape(geometry.num_blocks, -1) for part in layers], axis=1)

    for _, bits in _bits(host.arena):
        bits[...] = rng.integers(0, np.iinfo(bits.dtype).max, bits.shape, bits.dtype, endpoint=True)
    before, last = by_block(), geometry.num_blocks - 1
    data = host.read_blocks([2, last, 0])
    if data.shape != (3, host.block_bytes) or (data != before[[2, last, 0]]).any():
        raise Mismatch("read_blocks: other bytes than the arena's")
    host.write_blocks([1, last], data[[2, 0]])
    before[[1, last]] = before[[0, 2]]
    if (by_block() != before).any() or (host.read_blocks(range(geometry.num_blocks)) != before).any():
        raise Mismatch("write_blocks: other bytes in the arena")


def slots_of(arena: Arena, batch: Batch, layer: int) -> list[int]:
    """The slots of a batch's new tokens in the blocks of a layer; none where it keeps nothing of tokens."""
    group = arena.geometry.group_of(layer)
    if group is None:
        return []
    slots: list[int] = batch.blocks[of_group("slots", group)].tolist()
    return slots


def stored_rows(arena: Arena, layer: int, slots: list[int]) -> "dict[str, np.ndarray[Any, np.dtype[np.float32]]]":
    """The numbers that are stored in `k` and `v` of these slots, [slots, kv_heads, head_dim]."""
    geometry, rows = arena.geometry, {}
    for part, bits in _bits(arena):
        if part.group == geometry.group_of(layer):
            at = geometry.place(part.store, layer)[1]
            rows[part.store.title.lower()] = _numbers(_by_slot(arena, part, bits)[at, slots], str(part.dtype))
    return rows


def check_arena(
    arena: Arena,
    before: dict[str, Bits],
    reference: Arena,
    written: Mapping[Any, set[int]],
    check: Callable[[str, Bits, Bits, str], None] = check_op,
) -> None:
    """Checks that these slots of these layers equal the reference's, and that nothing else changed.

    Args:
        arena: the arena that kernels wrote.
        before: its snapshot from before.
        reference: the arena that the reference wrote.
        written: the written slots, by layer.
        check: compares the written numbers; its arguments are what, got, want and dtype.

    Raises:
        Mismatch: a slot differs, or something else changed.
    """
    g = arena.geometry
    for (part, bits), (_, reference_bits) in zip(_bits(arena), _bits(reference), strict=True):
        if part.group is None:
            got, expected = _numbers(bits, str(part.dtype)), _numbers(reference_bits, str(part.dtype))
            unwritten = np.isnan(expected)
            if (np.isnan(got) != unwritten).any():
                raise Mismatch(f"{part.store.title}: other slots were written")
            check(f"all of {part.store.title}", got[~unwritten], expected[~unwritten], str(part.dtype))
            continue
        name, after, want = part.store.title, _by_slot(arena, part, bits), _by_slot(reference, part, reference_bits)
        own = {g.place(part.store, i)[1]: set(s) for i, s in written.items() if g.group_of(i) == part.group}
        allowed = np.zeros(after.shape[:2], dtype=bool)
        for at, slots in own.items():
            allowed[at, sorted(slots)] = True
        changed = (after != before[part.name]).any(axis=(2, 3)) & ~allowed
        if changed.any():
            at = int(changed.any(axis=1).argmax())
            changed_slots, may = np.flatnonzero(changed[at]).tolist(), sorted(own.get(at, ()))
            raise Mismatch(f"{name} of layer {at}: slots {changed_slots} changed, only {may} may")
        for at in own:
            slots_written = np.flatnonzero(allowed[at])
            got, expected = (_numbers(rows[at, slots_written], str(part.dtype)) for rows in (after, want))
            check(f"{name} of layer {at}, slots {slots_written.tolist()}", got, expected, str(part.dtype))


def _by_slot(arena: Arena, part: Allocation, bits: Bits) -> Bits:
    slots = part.num_units * arena.geometry.block_size
    return _by_block(arena, bits).reshape(part.num_layers, slots, *part.shape[3:])


def _by_block(arena: Arena, bits: Bits) -> Bits:
    """A view, [layers, blocks, block_size, kv_heads, row_elements]."""
    return bits.swapaxes(0, 1) if arena.geometry.layout == "block" else bits


def _numbers(bits: Bits, dtype: str) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return floats(decode_rows(bits, dtype))
