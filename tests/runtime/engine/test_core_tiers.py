"""The core with tiers: what is restored, and what an interruption or a failure leaves behind."""

from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.pager import Prefix
from mlxr.runtime.cache.tiers.block_file import file_bytes
from mlxr_tests.hash_host import HashEngine
from mlxr_tests.hash_tiers import HashTiers

BOTH = pytest.mark.parametrize("pipelines", [False, True], ids=["plain", "pipelined"])


def run(engine: HashEngine, tiers: HashTiers) -> None:
    """Runs until all requests have ended; what is to be read and written is done between steps."""
    while engine.core.scheduler.running or engine.core.scheduler.waiting:
        engine.core.step()
        tiers.readers.run()
        tiers.flush()
        tiers.check()
        engine.check()


def small(tiers: HashTiers, pipelines: bool = False) -> HashEngine:
    """An engine whose arena has room for two requests of 12 + 12 tokens."""
    return HashEngine(13, 4, 2, context=32, pipelines=pipelines, tiers=tiers)


@BOTH
@pytest.mark.parametrize(("memory_blocks", "disk_blocks"), [(40, 0), (0, 40), (2, 40)])
def test_evicted_prompts_and_preempted_requests_come_back(
    memory_blocks: int, disk_blocks: int, pipelines: bool, tmp_path: Path
) -> None:
    tiers = HashTiers(4, memory_blocks, disk_blocks, tmp_path)
    engine = small(tiers, pipelines)
    prompts = [[first, *range(1, 12)] for first in range(5)]
    for prompt in prompts:
        engine.add(prompt, 12)
        run(engine, tiers)
    assert engine.core.stats().restored_tokens == 0
    again = [engine.add([*prompt, 20 + i], 18) for i, prompt in enumerate(prompts)]
    run(engine, tiers)
    for answer in again:
        assert answer.tokens == engine.alone(answer.request)
    stats = engine.core.stats()
    assert stats.preemptions and stats.restored_tokens >= 3 * 12 and stats.failed_steps == 0
    assert stats.tiers is not None
    assert bool(memory_blocks) == bool(stats.tiers["memory_hits"])
    assert bool(disk_blocks) == bool(stats.tiers["disk_hits"])
    engine.check_empty()
    engine.core.close()
    tiers.check_closed()


def test_tiers_are_closed_although_the_arena_cannot_be_saved(tmp_path: Path) -> None:
    tiers = HashTiers(4, 40, 40, tmp_path)
    engine = small(tiers)
    for first in range(6):
        engine.add([first, *range(1, 12)], 12)
    run(engine, tiers)
    engine.host.failing.add("read_blocks")
    with pytest.raises(HostError, match="could not be read"):
        engine.core.close()
    tiers.check_closed()
    assert tiers.files(), "what was in host memory is saved"
    engine.core.close()


def with_states(tmp_path: Path) -> tuple[HashEngine, HashTiers]:
    """An engine of which five prompts of 12 tokens and a state of each have left for host memory."""
    of_states = HashTiers(4, 40, 40, tmp_path, is_of_states=True)
    tiers = HashTiers(4, 40, 40, tmp_path, states=of_states)
    engine = HashEngine(13, 4, 2, context=32, tiers=tiers, state_slots=5)
    for first in range(5):
        engine.add([first, *range(1, 12)], 5)
        run(engine, tiers)
    return engine, tiers


def test_a_state_that_is_read_while_a_step_is_planned_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too late for the prefix of this step: the request waits for the next one."""
    engine, tiers = with_states(tmp_path)
    answer = engine.add([0, *range(1, 12), 9], 4)
    engine.core.step()
    find = engine.pager.find_prefix

    def find_and_read(*arguments: Any, **options: Any) -> Prefix:
        prefix = find(*arguments, **options)
        tiers.readers.run()
        return prefix

    monkeypatch.setattr(engine.pager, "find_prefix", find_and_read)
    run(engine, tiers)
    assert answer.tokens == engine.alone(answer.request)
    assert answer.request.answer.completion.cached_tokens == engine.core.stats().restored_tokens == 12
    engine.core.close()
    tiers.check_closed()


def test_memory_of_states_is_given_back_after_that_of_blocks(tmp_path: Path) -> None:
    engine, tiers = with_states(tmp_path)
    assert tiers.states is not None
    blocks, states = tiers.stats().memory_bytes, tiers.states.stats().memory_bytes
    assert blocks and states
    assert tiers.shrink(blocks) == blocks and tiers.states.stats().memory_bytes == states
    assert tiers.shrink(1 << 20) == states and not tiers.states.stats().memory_bytes
    engine.core.close()


def test_states_and_blocks_share_what_may_be_written_in_an_hour(tmp_path: Path) -> None:
    of_states = HashTiers(4, 0, 40, tmp_path, is_of_states=True)
    tiers = HashTiers(4, 0, 40, tmp_path, states=of_states, hour_blocks=7)
    engine = HashEngine(60, 4, 2, context=32, tiers=tiers, state_slots=8)
    for first in range(3):
        engine.add([first, *range(1, 12)], 5)
        run(engine, tiers)
    engine.core.close()
    written = tiers.stats().written_bytes + of_states.stats().written_bytes
    assert of_states.stats().written_bytes and written <= 7 * file_bytes(tiers.identity)


@BOTH
def test_a_restore_that_is_interrupted_is_computed(pipelines: bool) -> None:
    tiers = HashTiers(4, 40)
    engine = small(tiers, pipelines)
    for first in range(3):
        engine.add([first, *range(1, 12)], 12)
        run(engine, tiers)
    answer = engine.add([0, *range(1, 12), 9], 4)
    engine.core.step()
    tiers.readers.run()
    engine.host.interruption = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        engine.core.step()
    run(engine, tiers)
    assert answer.tokens == engine.alone(answer.request)
    assert engine.core.stats().restored_tokens == 0
    engine.check_empty()
