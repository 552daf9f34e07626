"""The core with tiers: what is restored, and what an interruption or a failure leaves behind."""

from pathlib import Path

import pytest

from mlxr.compiler.errors import HostError
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
