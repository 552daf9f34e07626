"""Blocks that leave the arena come back from host memory and from disk, also in another process's place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.runtime.engine.completion import Completion
from mlxr_tests.few import few
from mlxr_tests.storyteller import Q8_0, TINY, storyteller_spec, tiny_spec


def loaded(mode: str, tiers: mlxr.TierSizes, host: str = "cpu", **changes: object) -> mlxr.Model:
    cache = {"max_sequences": 1} if mode == "contiguous" else {"max_sequences": 3, "num_blocks": 9}
    make, file = (storyteller_spec, Q8_0) if host == "cpu" else (tiny_spec, TINY)
    spec = make(model={"context": 112}, cache=cache | {"mode": mode}, prefill_chunk=16, compute="exact")
    return mlxr.load(compile_spec(spec).artifact, file, host=host, tiers=tiers, **changes)  # type: ignore[arg-type]


def answer(model: mlxr.Model, start: int, count: int = 60) -> Completion:
    """Of a prompt that no other number begins alike."""
    (completion,) = model.start([range(start, start + count)], max_tokens=6, ignore_eos=True).finish()
    model.pager.check_integrity()
    return completion


@pytest.fixture(params=few(["paged", "contiguous"], ["paged"]))
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize("host", few(["cpu", "sim", "reference"], ["cpu"]))
def test_blocks_come_back_from_host_memory(mode: str, host: str) -> None:
    with loaded(mode, mlxr.TierSizes(memory_bytes=1 << 26), host) as model:
        first = answer(model, 100)
        for start in (250, 400):
            assert answer(model, start).cached_tokens == 0
        again = answer(model, 100)
        assert again.token_ids == first.token_ids
        stats = model.core.stats()
        assert again.cached_tokens == 59 and stats.restored_tokens >= 16
        assert stats.tiers is not None and stats.tiers["memory_hits"] == -(-stats.restored_tokens // 16)


def test_blocks_outlive_the_process(mode: str, tmp_path: Path) -> None:
    sizes = mlxr.TierSizes(disk_bytes=1 << 26, folder=tmp_path)
    with loaded(mode, sizes) as model:
        first = answer(model, 100)
        launches = sum(model.host.launches.values())
        assert model.core.save() == 4
    with loaded(mode, sizes) as model:
        again = answer(model, 100)
        assert (again.cached_tokens, again.token_ids) == (59, first.token_ids)
        assert sum(model.host.launches.values()) < launches, "a step for 1 token in place of four for 60"
        stats = model.core.stats()
        assert stats.tiers is not None and stats.tiers["disk_hits"] == 4


def test_a_part_of_a_block_comes_back(mode: str, tmp_path: Path) -> None:
    """Of a prompt that goes on in another way; and what is stored stays what it is."""
    sizes = mlxr.TierSizes(disk_bytes=1 << 26, folder=tmp_path)
    other = [*range(100, 154), *range(600, 650)]
    with loaded(mode, mlxr.TierSizes()) as model:
        (alone,) = model.start([other], max_tokens=6, ignore_eos=True).finish()
    with loaded(mode, sizes) as model:
        first = answer(model, 100)
    for cached in (54, 96):  # then its own full blocks were saved too
        with loaded(mode, sizes) as model:
            (completion,) = model.start([other], max_tokens=6, ignore_eos=True).finish()
            assert (completion.cached_tokens, completion.token_ids) == (cached, alone.token_ids)
            assert answer(model, 100).token_ids == first.token_ids


def test_a_damaged_file_is_computed_again(tmp_path: Path) -> None:
    sizes = mlxr.TierSizes(disk_bytes=1 << 26, folder=tmp_path)
    with loaded("paged", sizes) as model:
        first = answer(model, 100)
    for file in sorted(path for path in tmp_path.rglob("*") if path.is_file()):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with loaded("paged", sizes) as model:
        again = answer(model, 100)
        assert (again.cached_tokens, again.token_ids) == (0, first.token_ids)
        stats = model.core.stats()
        assert stats.tiers is not None and stats.tiers["damaged_blocks"]


@pytest.mark.long
def test_preempted_requests_get_their_blocks_back(tmp_path: Path) -> None:
    with loaded("paged", mlxr.TierSizes(memory_bytes=1 << 26)) as model:
        prompts = [range(300, 340), range(700, 740)]
        together = model.start(prompts, max_tokens=60, ignore_eos=True).finish()
        stats = model.core.stats()
        assert stats.preemptions
        alone = [model.start([prompt], max_tokens=60, ignore_eos=True).finish()[0] for prompt in prompts]
        assert [a.token_ids for a in together] == [a.token_ids for a in alone]


def test_tiers_are_refused_where_they_cannot_be() -> None:
    with pytest.raises(mlxr.RequestError, match="memory_bytes is -1"):
        mlxr.TierSizes(memory_bytes=-1)
    with loaded("paged", mlxr.TierSizes()) as model, pytest.raises(mlxr.RequestError, match="no tiers to save to"):
        model.core.save()
