"""The core with tiers: what is restored, and what an interruption or a failure leaves behind."""

from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.pager import Prefix
from mlxr.runtime.engine.sampling import Sampling
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


def with_states(
    tmp_path: Path, num_blocks: int, *sizes: int, pipelines: bool = False, answer: int = 5
) -> tuple[HashEngine, HashTiers]:
    """An engine that has answered five prompts of 12 tokens with some more, and has no room for all of them."""
    tiers = HashTiers(4, *sizes, tmp_path, state_bytes=8)
    engine = HashEngine(num_blocks, 4, 2, context=32, pipelines=pipelines, tiers=tiers, state_slots=6)
    for first in range(5):
        engine.add([first, *range(1, 12)], answer)
        run(engine, tiers)
    return engine, tiers


@BOTH
@pytest.mark.parametrize(("memory_blocks", "disk_blocks"), [(40, 0), (0, 40), (2, 40)])
@pytest.mark.parametrize(("num_blocks", "length"), [(13, 5), (13, 7), (60, 7)])
def test_states_come_back(
    num_blocks: int, length: int, memory_blocks: int, disk_blocks: int, pipelines: bool, tmp_path: Path
) -> None:
    """With the blocks before them, or with those alone that the arena lacks; also if these left first."""
    sizes = memory_blocks, disk_blocks
    engine, tiers = with_states(tmp_path, num_blocks, *sizes, pipelines=pipelines, answer=length)
    for first in range(5):
        prompt = [first, *range(1, 12)]
        known = engine.alone(engine.requests(prompt, Sampling(max_tokens=length))[0])
        answer = engine.add([*prompt, *known, 20], 3)
        run(engine, tiers)
        assert answer.tokens == engine.alone(answer.request)
        assert answer.request.answer.completion.cached_tokens == 11 + length, "all but the last token of the answer"
    assert engine.core.stats().restored_tokens >= 3 * (11 + length)
    engine.check_empty()
    engine.core.close()
    tiers.check_closed()


@BOTH
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_state_that_cannot_be_brought_back_is_computed(interrupted: bool, pipelines: bool, tmp_path: Path) -> None:
    engine, tiers = with_states(tmp_path, 13, 80, 0, pipelines=pipelines)
    answer = engine.add([0, *range(1, 12), 9], 4)
    engine.core.step()
    tiers.readers.run()
    if interrupted:
        engine.host.interruption = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            engine.core.step()
    else:
        engine.host.failing.add("write_blocks")
    run(engine, tiers)
    assert answer.tokens == engine.alone(answer.request) and not engine.host.failing
    assert engine.core.stats().restored_tokens == 0
    engine.check_empty()


def test_a_state_that_is_read_while_a_step_is_planned_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too late for the prefix of this step: the request waits for the next one."""
    engine, tiers = with_states(tmp_path, 13, 40, 40)
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
