"""What fits: refusals name each part and what would fit, and what they name does fit; arenas shrink to what is free."""

import re

import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import BudgetError, HostError
from mlxr.compiler.spec.change import Changes, changed
from mlxr.runtime.memory.fitting_arena import SHARE, Footprint, block_bytes, fitting_arena, least_arena
from mlxr.runtime.memory.free_memory import FreeMemory
from mlxr_tests.specs import compiled, small_spec

WIDE = {"model__context": 4096, "cache": {"dtype": "f32", "block_size": 4, "max_sequences": 3}, "prefill_chunk": 8}
"""An arena that is much larger than the rest."""


def needs(artifact: Artifact, mapped: int = 0) -> Footprint:
    memory = artifact.plan.programs["metal"].memory
    return Footprint(memory.weights_bytes - mapped, mapped, memory.activation_bytes)


def refusal(artifact: Artifact, free: int, **options: object) -> str:
    with pytest.raises(HostError) as error:
        fitting_arena(artifact, "metal", needs(artifact), FreeMemory(free, 1 << 30), **options)  # type: ignore[arg-type]
    return str(error.value)


def test_exactly_enough_fits_and_one_byte_less_is_refused() -> None:
    artifact = compiled(small_spec(**WIDE))
    memory = artifact.plan.programs["metal"].memory
    free = FreeMemory(memory.total_bytes + 7, 1 << 30)
    arena = fitting_arena(artifact, "metal", needs(artifact), free, tier_bytes=7)
    assert arena == artifact.plan.arena
    told = refusal(artifact, memory.total_bytes + 6, tier_bytes=7)
    for part in (
        r"weights \d",
        r"an arena of 12288 tokens 15\.0 MiB",
        r"activations \d",
        r"the cache's tier in memory 7 B",
    ):
        assert re.search(part, told), told
    assert "a tier in memory of 6 B" in told and "this machine has" in told


def test_mapped_weights_need_not_fit() -> None:
    artifact = compiled(small_spec(**WIDE))
    memory = artifact.plan.programs["metal"].memory
    free = FreeMemory(memory.total_bytes - 1000, 1 << 30)
    fitting_arena(artifact, "metal", needs(artifact, mapped=1000), free)


@pytest.mark.parametrize("share", [0.8, 0.4, 0.2])
def test_what_a_refusal_names_fits_and_a_block_more_does_not(share: float) -> None:
    spec = small_spec(**WIDE)
    artifact = compiled(spec)
    memory = artifact.plan.programs["metal"].memory
    free = memory.weights_bytes + memory.activation_bytes + int(share * memory.arena_bytes)
    told = refusal(artifact, free)

    def fits(**cache: int) -> bool:
        context = cache.pop("context", spec.model.context)
        other = compiled(
            spec.model_copy(
                update={
                    "model": spec.model.model_copy(update={"context": context}),
                    "cache": spec.cache.model_copy(update=cache),
                }
            )
        )
        return other.plan.programs["metal"].memory.total_bytes <= free

    context = int(re.search(r"mlxr.Changes\(context=(\d+)\)\) with max_sequences 3", told)[1])  # type: ignore[index]
    assert fits(context=context) and not fits(context=context + 8), "a block more, and activations that grow with it"
    if share < 1 / 3:
        assert "sequences=" not in told
        return
    sequences = int(re.search(r"sequences=(\d)\).* with context 4096", told)[1])  # type: ignore[index]
    assert fits(max_sequences=sequences) and not fits(max_sequences=sequences + 1)
    cache_memory = int(re.search(r"cache_memory=(\d+)", told)[1])  # type: ignore[index]
    assert compiled(changed(spec, Changes(cache_memory=cache_memory))).plan.largest_memory.total_bytes <= free


def test_if_not_all_sequences_fit_with_any_context_one_may() -> None:
    artifact = compiled(small_spec(**WIDE))
    rest = artifact.plan.largest_memory.weights_bytes + artifact.plan.largest_memory.activation_bytes
    assert "context 8 (--context 8, mlxr.Changes(context=8)) with max_sequences 1" in refusal(
        artifact, rest + 2 * block_bytes(artifact.plan.arena)
    )
    assert "nothing: close other programs" in refusal(artifact, rest)


def test_an_arena_whose_size_was_asked_for_gets_a_smaller_one() -> None:
    artifact = compiled(small_spec(**WIDE | {"cache__num_blocks": 2000}))
    memory = artifact.plan.largest_memory
    block = block_bytes(artifact.plan.arena)
    told = refusal(artifact, memory.total_bytes - block)
    assert f"mlxr.Changes(cache_memory={1999 * block}), cache.num_blocks 1999" in told
    assert "with context 3996 (" in refusal(artifact, memory.total_bytes - 1001 * block)


def test_an_arena_shrinks_to_a_share_of_what_is_free() -> None:
    artifact = compiled(small_spec(**WIDE))
    plan, need = artifact.plan, needs(artifact, mapped=1000)
    block, rest = block_bytes(plan.arena), need.weights_bytes + need.activation_bytes + need.mapped_bytes

    def blocks(free: int) -> int:
        return fitting_arena(artifact, "metal", need, FreeMemory(free, free), shrink=True).num_blocks

    assert blocks(rest + int(3072 * block / SHARE) + 1) == blocks(1 << 40) == 3072
    assert blocks(rest + int(2000 * block / SHARE) + 1) == 2000
    assert blocks(rest + 1024 * block) == 1024, "one sequence of full context may take more than the share"
    told = refusal(artifact, rest + 1023 * block, shrink=True)
    assert "an arena of 4096 tokens" in told and "the largest that fits: context 4092 (--context 4092" in told


def test_an_arena_that_kernels_know_the_size_of_does_not_shrink() -> None:
    artifact = compiled(small_spec(**WIDE | {"cache__layout": "layer"}))
    memory = artifact.plan.largest_memory
    assert "the largest that fits: context" in refusal(artifact, memory.total_bytes - 1, shrink=True)


OWN = WIDE | {"model__context": 40960, "cache__least_context": 2048}
"""A model that leaves its context to memory."""


def chosen(artifact: Artifact, blocks: float, **options: object) -> tuple[int, int]:
    """Context, and tokens of the arena, where so many blocks are free besides all else."""
    need = needs(artifact)
    rest = need.weights_bytes + need.activation_bytes
    free = FreeMemory(rest + int(blocks * block_bytes(artifact.plan.arena)), 1 << 40)
    arena = fitting_arena(artifact, "metal", need, free, **options)  # type: ignore[arg-type]
    assert arena.max_blocks_per_sequence == 40960 // 4, "kernels know the length of a block table"
    return arena.context, arena.num_blocks * arena.block_size


def test_a_context_is_as_long_as_the_memory_that_is_free_allows() -> None:
    artifact = compiled(small_spec(**OWN))
    assert artifact.plan.arena.num_blocks * 4 == 40960, "the model's own context, or 3 sequences of 8192"
    assert chosen(artifact, 10240 / SHARE + 1) == chosen(artifact, 1 << 20, shrink=True) == (40960, 40960)
    assert chosen(artifact, 5121 / SHARE, shrink=True) == (20480, 20484), "a multiple of 1024"
    assert chosen(artifact, 2048, shrink=True) == (8192, 8192), "8192 tokens may take more than the share"
    assert chosen(artifact, 1024, shrink=True) == (4096, 4096), "or what there is, but no less than the least"
    assert chosen(artifact, 512, shrink=True) == (2048, 2048)
    with pytest.raises(HostError, match=r"an arena of 2048 tokens .* the largest that fits: context 2044 "):
        chosen(artifact, 511, shrink=True)
    assert chosen(artifact, 6144) == (24576, 24576), "each of 3 sequences may have 8192"
    with pytest.raises(HostError, match=r"an arena of 6144 tokens"):
        chosen(artifact, 3 * 512 - 1)
    assert least_arena(artifact, "metal").num_blocks == 512


def test_what_a_caller_needs_is_the_least() -> None:
    artifact = compiled(small_spec(**OWN))
    assert chosen(artifact, 1 << 20, needed_context=20001) == (40960, 3 * 20004), "of each of 3 sequences"
    assert chosen(artifact, 5001, needed_context=20001, shrink=True) == (20001, 20004)
    with pytest.raises(HostError, match=r"an arena of 60012 tokens"):
        chosen(artifact, 3 * 5001 - 1, needed_context=20001)


def test_a_context_that_was_asked_for_is_not_left_to_memory() -> None:
    spec = small_spec(**OWN)
    artifact = compiled(changed(spec, Changes(context=10000)))
    assert artifact.spec.cache.least_context is None and artifact.plan.arena.num_blocks == 3 * 2500
    assert "an arena of 30000 tokens" in refusal(artifact, 1 << 20)


def test_a_cache_of_a_given_size_decides_the_context() -> None:
    arena = compiled(small_spec(**OWN | {"cache__num_blocks": 1000})).plan.arena
    assert (arena.context, arena.max_blocks_per_sequence, arena.num_blocks) == (4000, 1000, 1000)
    with pytest.raises(BudgetError, match="gives 511 blocks of 4 tokens, but one sequence of context 2048 needs 512"):
        compiled(small_spec(**OWN | {"cache__num_blocks": 511}))
