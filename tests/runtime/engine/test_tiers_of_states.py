"""States of recurrent layers that leave the arena come back, beside K and V, from host memory and after a restart."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import mlxr
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.model import Model
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few
from mlxr_tests.kv_blocks import flip
from mlxr_tests.specs import compiled
from mlxr_tests.thread_ranks import save_canonical

MAMBA2 = {"model__layer_types": {"ssm": {"blocks": ["recurrent"]}}, "model__layer_pattern": ["ssm"]}
"""No layer has attention."""
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
"""Two blocks of 4, and a half."""
NO_TIERS = mlxr.TierSizes()


def loaded(name: str, folder: Path, tiers: mlxr.TierSizes, host: str = "cpu", **cache: object) -> Model:
    sizes = {"dtype": "f32", "block_size": 4, "max_sequences": 1, "mode": "paged", **cache}
    exact = {"compute": "exact", "deterministic": True, "cache": sizes, "prefill_chunk": 8, "model__context": 64}
    family, changes = ("ssm", MAMBA2) if name == "mamba2" else (name, {})
    artifact = compiled(family_spec(family, **exact, **changes), target="metal" if host == "sim" else "cpu")
    return mlxr.load(artifact, save_canonical(folder, artifact), host=host, tiers=tiers)


def ask(model: Model, prompt: list[int]) -> Completion:
    answer = model.start([prompt], max_tokens=5, ignore_eos=True, sampling=mlxr.Sampling(logprobs=2)).finish()[0]
    model.pager.check_integrity()
    return answer


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast these models compute."""
    monkeypatch.setattr(BlockTiers, "worth", lambda *_: True)


def same(answer: Completion, other: Completion) -> bool:
    return replace(answer, cached_tokens=0) == replace(other, cached_tokens=0)


RESTARTS = [
    *[(name, host, "paged") for name in ("delta", "mamba2", "ssm-beside-attention") for host in ("cpu", "sim")],
    *[("short-conv", "reference", "paged"), ("short-conv-alone", "cpu", "paged")],
    *[("delta", "cpu", "contiguous"), ("mamba2", "cpu", "contiguous")],
]


@pytest.mark.parametrize(("name", "host", "mode"), few(RESTARTS, [RESTARTS[0], RESTARTS[2], RESTARTS[-2]]))
def test_a_second_turn_after_a_restart(name: str, host: str, mode: str, tmp_path: Path) -> None:
    """It reads what is new, and no file of K and V more than it needs."""
    tiers = mlxr.TierSizes(disk_bytes=1 << 26, folder=tmp_path / "tiers")
    with loaded(name, tmp_path, NO_TIERS, host, mode=mode) as model:
        first = ask(model, PROMPT)
        talk = [*PROMPT, *first.token_ids, 7, 8]
        second, other = ask(model, talk), ask(model, [*PROMPT, 40])
    with loaded(name, tmp_path, tiers, host, mode=mode) as model:
        assert same(ask(model, PROMPT), first)
    with loaded(name, tmp_path, tiers, host, mode=mode) as model:
        again = ask(model, talk)
        assert again.cached_tokens == 15 and same(again, second), "the last token of an answer is never computed"
        stats = model.core.stats()
        assert stats.restored_tokens == 15 and stats.computed_tokens == 3 + 4 and stats.tiers is not None
        assert stats.tiers["disk_hits"] == (4 if model.host.block_bytes else 1)
        branched = ask(model, [*PROMPT, 40])
        assert branched.cached_tokens == 11 and same(branched, other), "another answer begins after the prompt"


def damage_all(files: list[Path]) -> None:
    for file in files:
        flip(file)


def cut_all(files: list[Path]) -> None:
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])


def exchange(files: list[Path]) -> None:
    """Each file has what another one of the same size had."""
    sizes = {file.stat().st_size for file in files}
    for size in sizes:
        alike = [file for file in files if file.stat().st_size == size]
        contents = [file.read_bytes() for file in alike]
        for file, content in zip(alike, contents[1:] + contents[:1], strict=True):
            file.write_bytes(content if len(alike) > 1 else content[::-1])


@pytest.mark.parametrize("damage", [damage_all, cut_all, exchange])
def test_damaged_files_of_states_are_removed(damage: Callable[[list[Path]], None], tmp_path: Path) -> None:
    tiers = mlxr.TierSizes(disk_bytes=1 << 26, folder=tmp_path / "tiers")
    with loaded("mamba2", tmp_path, tiers) as model:
        first = ask(model, PROMPT)
        second = ask(model, [*PROMPT, *first.token_ids, 7])
    files = sorted((tmp_path / "tiers").rglob("*.kv"))
    damage(files)
    with loaded("mamba2", tmp_path, tiers) as model:
        again = ask(model, [*PROMPT, *first.token_ids, 7])
        stats = model.core.stats().tiers
        assert again.cached_tokens == 0 and same(again, second)
        assert stats is not None and stats["damaged_blocks"] == 1 and not stats["disk_hits"]


@pytest.mark.parametrize(("name", "num_blocks"), few([("delta", 24), ("delta", 16), ("mamba2", 24)], [("delta", 24)]))
def test_states_come_back_from_host_memory(name: str, num_blocks: int, tmp_path: Path) -> None:
    """Of conversations whose snapshots or whose blocks, whichever is first, had to leave for others."""
    prompts = [[30 + i, *PROMPT] for i in range(9)]
    with loaded(name, tmp_path, NO_TIERS) as model:
        answers = [ask(model, prompt) for prompt in prompts]
        talks = [[*prompt, *answer.token_ids, 50] for prompt, answer in zip(prompts, answers, strict=True)]
        wanted = [ask(model, talk) for talk in talks]
    with loaded(name, tmp_path, mlxr.TierSizes(memory_bytes=1 << 24), num_blocks=num_blocks) as model:
        for prompt in prompts:
            ask(model, prompt)
        for talk, answer in zip(talks, wanted, strict=True):
            again = ask(model, talk)
            assert again.cached_tokens == 16 and same(again, answer)
        stats = model.core.stats()
        assert stats.restored_tokens >= 6 * 16 and stats.tiers is not None
        each = model.host.slot_bytes
        assert stats.tiers["memory_bytes"] > each * len(prompts), "bytes of states count"
