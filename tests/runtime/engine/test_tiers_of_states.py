"""States of recurrent layers that leave the arena come back, beside K and V, from host memory and after a restart."""

from dataclasses import replace
from pathlib import Path

import pytest

import mlxr
from mlxr.compiler.errors import RequestError
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.model import Model
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few
from mlxr_tests.specs import compiled
from mlxr_tests.thread_ranks import save_canonical

NAMES = ["short-conv", "ssm-beside-attention"]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
"""Two blocks of 4, and a half."""


def loaded(name: str, folder: Path, tiers: mlxr.TierSizes, host: str = "cpu", **cache: object) -> Model:
    sizes = {"dtype": "f32", "block_size": 4, "max_sequences": 1, "mode": "paged", **cache}
    exact = {"compute": "exact", "deterministic": True, "cache": sizes, "prefill_chunk": 8, "model__context": 64}
    artifact = compiled(family_spec(name, **exact), target="metal" if host == "sim" else "cpu")
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


@pytest.mark.parametrize("name", few(NAMES, ["short-conv"]))
@pytest.mark.parametrize("host", few(["cpu", "reference", "sim"], ["cpu"]))
def test_a_restart_finds_the_state_of_the_last_full_block(name: str, host: str, tmp_path: Path) -> None:
    tiers = mlxr.TierSizes(disk_bytes=1 << 26, folder=tmp_path / "tiers")
    with loaded(name, tmp_path, mlxr.TierSizes(), host) as model:
        first = ask(model, PROMPT)
        talk = [*PROMPT, *first.token_ids, 7, 8]
        second = ask(model, talk)
    with loaded(name, tmp_path, tiers, host) as model:
        assert same(ask(model, PROMPT), first)
    for cached in (8, 16):  # then the last full block of the longer prompt was saved, too
        with loaded(name, tmp_path, tiers, host) as model:
            again = ask(model, talk)
            assert again.cached_tokens == cached and same(again, second)
            stats = model.core.stats()
            assert stats.restored_tokens == cached and stats.tiers is not None
            assert stats.tiers["disk_hits"] == cached // 4


@pytest.mark.parametrize("name", few(NAMES, ["ssm-beside-attention"]))
def test_states_come_back_from_host_memory(name: str, tmp_path: Path) -> None:
    """Of conversations whose snapshots, and then whose blocks, had to leave for others."""
    prompts = [[30 + i, *PROMPT] for i in range(12)]
    longer = [[*prompt, 50, 51] for prompt in (*prompts[-6:], *prompts[:3])]
    with loaded(name, tmp_path, mlxr.TierSizes()) as model:
        wanted = [ask(model, prompt) for prompt in longer]
    with loaded(name, tmp_path, mlxr.TierSizes(memory_bytes=1 << 24), num_blocks=24) as model:
        for prompt in prompts:
            ask(model, prompt)
        for prompt, answer in zip(longer, wanted, strict=True):
            again = ask(model, prompt)
            assert again.cached_tokens >= 8 and same(again, answer)
        assert model.core.stats().restored_tokens > 0


def test_models_without_keys_have_no_tiers(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"keeps a state of each sequence and keeps no keys.* without tiers"):
        loaded("short-conv-alone", tmp_path, mlxr.TierSizes(memory_bytes=1 << 24))
