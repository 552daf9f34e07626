"""The invariants of the pager, as checks that name the equation which does not hold. For tests and debugging."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from mlxr.compiler.errors import ArenaError
from mlxr.runtime.cache.block_hashes import Digest, block_digest
from mlxr.runtime.cache.blocks import BlockPool, BlockSequence


def check_blocks(pool: BlockPool, sequences: Collection[BlockSequence], copies: Mapping[int, int]) -> None:
    """Checks that each block is exactly what its users say: used, idle or free.

    Args:
        pool: the blocks.
        sequences: all sequences.
        copies: the source of each pending copy, by its destination.

    Raises:
        ArenaError: an equation does not hold.
    """
    occurrences = Counter(block_id for sequence in sequences for block_id in sequence.blocks)
    sources = Counter(copies.values())
    for block_id in range(pool.num_blocks):
        equal(f"references of block {block_id}", pool.references[block_id], "in tables", occurrences[block_id])
        equal(f"pins of block {block_id}", pool.pins[block_id], "copies from it", sources[block_id])
    free, used = set(pool.free_blocks), set(occurrences) | set(sources)
    equal("length of the free list", len(pool.free_blocks), "distinct blocks in it", len(free))
    equal("blocks free and used", free & used, "none", set())
    equal("idle blocks", set(pool.idle), "cached blocks that are not used", set(pool.index.cached) - used)
    equal("blocks free and cached", free & set(pool.index.cached), "none", set())
    every = set(range(pool.num_blocks))
    equal("blocks neither free nor idle nor used", every - free - used - set(pool.idle), "none", set())
    equal("blocks out of range", (free | used) - every, "none", set())
    equal("copy sources that are destinations", set(sources) & set(copies), "none", set())
    for block_id in copies:
        equal(f"references of copy destination {block_id}", pool.references[block_id], "1", 1)


def check_sequence(who: str, sequence: BlockSequence, pool: BlockPool, block_size: int, context: int) -> None:
    """Checks a sequence: its table is as long as its tokens need, and it writes only blocks of its own.

    Raises:
        ArenaError: an equation does not hold; it begins with `who`.
    """
    blocks, length, settled = sequence.blocks, sequence.length, sequence.settled
    equal(who + "blocks in the table", len(blocks), "distinct ones", len(set(blocks)))
    equal(who + "blocks in the table", len(blocks), "ceil(length / block_size)", -(-length // block_size))
    _ascending(who + "0 <= settled <= length <= context", 0, settled, length, context)
    _ascending(
        who + "cached tokens <= committed <= length", sequence.num_cached * block_size, sequence.committed, length
    )
    if settled < length:  # the coming step writes these blocks
        for i in range(settled // block_size, len(blocks)):
            equal(f"{who}references of written block {blocks[i]}", pool.references[blocks[i]], "1", 1)
            if cached := pool.index.cached.get(blocks[i]):
                what = f"{who}cached tokens of written block {blocks[i]} <= settled ones"
                _ascending(what, len(cached.tokens), settled - i * block_size)


def check_index(pool: BlockPool, sequences: Collection[BlockSequence], block_size: int) -> None:
    """Checks the prefix index: what it says of each block, and that a block is evicted before those it follows.

    Raises:
        ArenaError: an equation does not hold.
    """
    index = pool.index
    of_digest = {block.digest: block_id for block_id, block in index.cached.items()}
    equal("cached blocks by digest", index.block_of, "digests of cached blocks", of_digest)
    children: dict[Digest, dict[int, list[int]]] = {}
    for block_id, block in index.cached.items():
        who = f"cached block {block_id}: "
        equal(who + "id", block.block_id, "block", block_id)
        equal(who + "digest", block.digest, "that of its tokens", block_digest(block.parent, block.tokens))
        _ascending(who + "1 <= tokens <= block_size", 1, len(block.tokens), block_size)
        children.setdefault(block.parent, {}).setdefault(block.tokens[0], []).append(block_id)
    equal("cached blocks by parent", _sorted(index.children), "parents", _sorted(children))
    order = {block_id: number for number, block_id in enumerate(pool.idle)}
    for block_id, block in index.cached.items():
        parent = index.block_of.get(block.parent)  # None: a root
        if parent in order and not pool.pins[block_id]:
            what = f"place of block {block_id} in the order of eviction < that of {parent}, which it follows"
            _ascending(what, order.get(block_id, len(order)), order[parent])
    for sequence in sequences:
        parents = [index.cached[block_id].parent for block_id in sequence.blocks[: sequence.num_cached]]
        digests = [index.cached[block_id].digest for block_id in sequence.blocks[: sequence.num_cached]]
        equal("parents of a sequence's cached blocks", parents[1:], "digests before them", digests[:-1])
        if sequence.parent is not None and digests:
            equal("digest before a sequence's last block", sequence.parent, "digest of its cached blocks", digests[-1])


def check_open_sequences(
    open_sequences: Mapping[Digest, Sequence[BlockSequence]], sequences: Collection[BlockSequence]
) -> None:
    """Checks that the sequences which can be found by their last block are those that say so.

    Raises:
        ArenaError: an equation does not hold.
    """
    rows = {parent: sorted(sequence.row for sequence in siblings) for parent, siblings in open_sequences.items()}
    expected: dict[Digest, list[int]] = {}
    for sequence in sorted(sequences, key=lambda sequence: sequence.row):
        if sequence.parent is not None:
            expected.setdefault(sequence.parent, []).append(sequence.row)
    equal("rows of sequences by the digest before their last block", rows, "those that have a parent", expected)


def equal(what: str, left: object, equal_to: str, right: object) -> None:
    """Checks an equation.

    Raises:
        ArenaError: it does not hold.
    """
    if left != right:
        raise ArenaError(f"arena integrity: {what} == {equal_to} does not hold: {left} != {right}")


def _sorted(children: Mapping[Digest, Mapping[int, Sequence[int]]]) -> dict[Digest, dict[int, list[int]]]:
    return {parent: {first: sorted(ids) for first, ids in by.items()} for parent, by in children.items()}


def _ascending(equation: str, *values: int) -> None:
    if list(values) != sorted(values):
        raise ArenaError(f"arena integrity: {equation} does not hold: {' <= '.join(map(str, values))}")
