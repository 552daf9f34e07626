"""A model is loaded only if it fits into the memory that is free, in an arena that may be smaller than planned."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mlxr
from mlxr.compiler.errors import BudgetError, HostError
from mlxr.runtime.engine.choose_arena import choose_arena
from mlxr.runtime.hosts.cpu.host import CpuHost
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr.runtime.hosts.select import resolve_host
from mlxr.runtime.memory import free_memory
from mlxr.runtime.memory.free_memory import FreeMemory
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.storyteller import BF16, Q8_0, TINY, tiny_spec

PROMPTS = [[1, *range(20, 60)], [1, 5, 6], [1, *range(100, 120)]]
MANY = mlxr.Changes(sequences=8)


def with_free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """Makes all hosts find so much memory."""
    monkeypatch.setattr(Host, "free_memory", classmethod(lambda cls: FreeMemory(free_bytes, 1 << 40)))


@pytest.mark.long
def test_a_shrunk_arena_runs_the_same_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("cpu", "sim"):
        with mlxr.load(TINY, host=host, changes=MANY) as model:
            assert model.pager.num_blocks == 8 * 512 // 16 and not model.notes
            expected = [answer.token_ids for answer in model.start(PROMPTS, max_tokens=8).finish()]
            needs = model.host.footprint(model.artifact, open_weights(TINY))
            arena_bytes = model.arena.geometry.size_bytes
            model.pager.append(seq_id := model.pager.add_sequence(), 1)
            assert model.pager.block_tables([seq_id]).shape == (1, 1), "as many columns as are used"
        free = needs.weights_bytes + needs.activation_bytes + arena_bytes // 4
        with monkeypatch.context() as patch:
            with_free(patch, free)
            with pytest.raises(HostError, match=r"tiny-Q8_0 needs .*an arena of 4096 tokens"):
                mlxr.load(TINY, host=host, changes=MANY)
            small = mlxr.load(TINY, host=host, changes=MANY, shrink_arena=True)
        with small:
            assert small.pager.num_blocks == small.arena.geometry.num_blocks == 8 * 512 // 16 * 3 // 4 // 4
            assert small.artifact.digest == model.artifact.digest, "another number of blocks compiles nothing anew"
            assert len(small.notes) == 1 and "not for all of 4096" in small.notes[0]
            assert [answer.token_ids for answer in small.start(PROMPTS, max_tokens=8).finish()] == expected
            small.pager.check_integrity()


def test_a_context_that_memory_decides_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny_spec()
    own = spec.model_copy(
        update={
            "model": spec.model.model_copy(update={"context": 40960}),
            "cache": spec.cache.model_copy(update={"least_context": 64}),
        }
    )
    beyond = mlxr.Changes(force_context=True)
    with mlxr.load(own, TINY, host="reference", changes=beyond) as model:
        assert str(model.limit) == "context 40,960, all that the model has" and not model.notes
        with pytest.raises(mlxr.PromptTooLongError, match=r"the context is 40960, and .*: shorten the prompt$"):
            model.generate([1] * 40960)
        needs = ReferenceHost.footprint(model.artifact, open_weights(TINY))
        block = model.host.block_bytes
    rest = needs.weights_bytes + needs.activation_bytes + needs.mapped_bytes
    with_free(monkeypatch, rest + 800 * block)  # room for 12,800 tokens: three quarters are 9,600
    with mlxr.load(own, TINY, host="reference", changes=beyond) as model:
        assert model.pager.context == model.limit.tokens == 9216 and model.artifact.plan.arena.context == 40960
        assert model.notes == (str(model.limit),)
        assert "context 9,216 of the model's own 40,960: this machine has " in model.context_line
        wanted = (
            r"has 9216 tokens; the context is 9216 of the model's own 40960 \(this machine has .* of memory free.*\)"
            r", and .*: shorten the prompt, or load the model while more memory is free, with a smaller cache \(--kv q8"
        )
        with pytest.raises(mlxr.PromptTooLongError, match=wanted):
            model.generate([1] * 9216)
        assert model.generate([1] * 9, max_tokens=2).finish_reason == "length"


def test_the_memory_of_the_cache_can_be_asked_for() -> None:
    with mlxr.load(TINY, host="reference", changes=mlxr.Changes(sequences=8, cache_memory="2MiB")) as model:
        assert (2 << 20) * 0.4 < model.arena.geometry.size_bytes <= 2 << 20, "cpu's f32 may be wider than this host's"
        assert model.pager.num_blocks < 8 * 512 // 16
    with pytest.raises(
        BudgetError, match=r"memory_budget gives 2 blocks of 16 tokens, but one sequence of context 512"
    ):
        mlxr.load(TINY, host="reference", changes=mlxr.Changes(sequences=8, cache_memory=40_000))
    with pytest.raises(mlxr.SpecError, match=r"memory_budget"):
        mlxr.load(TINY, host="reference", changes=mlxr.Changes(cache_memory="much"))


def test_weights_that_stay_mapped_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embeddings of these bf16 weights stay in their file; the host then says where the weights are."""
    spec = mlxr.compile("storyteller", changes=mlxr.Changes(context=64)).spec
    spec = spec.model_copy(update={"weights": spec.weights.model_copy(update={"default": "bf16"}), "compute": "exact"})
    artifact = mlxr.compile(spec)
    file = open_weights(BF16)
    footprint = CpuHost.footprint(artifact, file, 2)
    with mlxr.load(artifact, BF16, host="cpu", threads=2) as model:
        host = model.host
        assert isinstance(host, CpuHost)
        assert (footprint.weights_bytes, footprint.mapped_bytes) == (host.own_bytes, host.mapped_bytes)
    assert footprint.mapped_bytes > 0
    with_free(
        monkeypatch, footprint.weights_bytes + footprint.activation_bytes + model.artifact.plan.arena.size_bytes * 4
    )
    (note,) = choose_arena(artifact, file, resolve_host("cpu"), threads=2).notes
    assert "are mapped from their file, but only" in note


def test_the_reference_host_holds_numbers() -> None:
    artifact = mlxr.compile(tiny_spec())
    numbers = ReferenceHost.footprint(artifact, open_weights(TINY)).weights_bytes
    with mlxr.load(artifact, TINY, host="reference") as model:
        assert isinstance(model.host, ReferenceHost)
        assert numbers == sum(array.nbytes for array in model.host.weights.values())


def test_the_tier_of_a_gpu_with_its_own_memory_is_in_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, file, entry = mlxr.compile(tiny_spec()), open_weights(TINY), resolve_host("reference")
    monkeypatch.setattr(ReferenceHost, "has_own_memory", True)
    with_free(monkeypatch, artifact.plan.largest_memory.total_bytes * 2)
    monkeypatch.setattr(free_memory.MachineMemory, "read", lambda _: FreeMemory(1 << 20, 1 << 30))
    assert choose_arena(artifact, file, entry, tier_memory=1 << 20).geometry == artifact.plan.arena
    with pytest.raises(
        HostError, match=r"tier in memory takes 1\.0 MiB, but this machine has 1\.0 MiB of 1\.0 GiB free"
    ):
        choose_arena(artifact, file, entry, tier_memory=(1 << 20) + 1)


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="only Linux counts the address space")
def test_a_process_that_may_not_have_so_much_refuses() -> None:
    """A command with 2 GiB more than it uses is asked for a cache of 8 GiB. It is nowhere near using them."""
    program = f"""
import resource, sys
from pathlib import Path
from mlxr.cli import main
import mlxr.runtime.engine.model
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), -1))
options = "--host reference --kv f32 --prompt A --context 1000000 --force-context"
sys.exit(main(["run", {str(Q8_0)!r}, *options.split()]))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "address space" in ended.stderr and "the largest that fits: context" in ended.stderr
    assert "Traceback" not in ended.stderr
