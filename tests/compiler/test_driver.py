"""The driver: budgets, memory plans and the commands' summaries."""

import re
from typing import Any

import pytest

from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import BudgetError, MlxrError, PlanError
from mlxr.compiler.spec.catalog import bundled_specs, find_spec
from mlxr.compiler.spec.load import load_spec
from mlxr.compiler.spec.parallel import Parallel
from mlxr_tests.few import few_of
from mlxr_tests.storyteller import storyteller_spec


@pytest.mark.parametrize("name", sorted(bundled_specs()))
def test_every_bundled_spec_compiles_within_its_budget(name: str) -> None:
    spec = load_spec(find_spec(name))
    plan = compile_spec(spec).artifact.plan
    assert plan.first.memory.weights_bytes > 0
    if spec.memory_budget is not None:
        assert plan.first.memory.total_bytes <= spec.memory_budget


def test_memory_is_what_the_dims_say() -> None:
    plan = compile_spec(storyteller_spec(cache={"max_sequences": 4})).artifact.plan
    parameters = 17_832_448
    assert plan.first.memory.weights_bytes == parameters * 4
    assert plan.first.memory.arena_bytes == 2 * 6 * (4 * 1024) * 2 * 64 * 4
    assert plan.arena.num_blocks == 4 * 1024 // 16


def test_a_spec_over_its_budget_is_refused_with_what_would_fit() -> None:
    four = {"max_sequences": 4}
    whole = compile_spec(storyteller_spec(cache=four)).artifact.plan.first.memory
    budget = whole.total_bytes - whole.arena_bytes // 2
    with pytest.raises(BudgetError) as error:
        compile_spec(storyteller_spec(cache=four, memory_budget=budget))
    message = str(error.value)
    match = re.search(r"context (\d+) with max_sequences 4 or max_sequences (\d+) with context 1024", message)
    assert match, message
    context, sequences = int(match[1]), int(match[2])
    # What is offered fits, and the next larger does not.
    compile_spec(storyteller_spec(cache=four, memory_budget=budget, model={"context": context}))
    compile_spec(storyteller_spec(memory_budget=budget, cache={"max_sequences": sequences}))
    for larger in ({"cache": four, "model": {"context": context + 1}}, {"cache": {"max_sequences": sequences + 1}}):
        with pytest.raises(BudgetError):
            compile_spec(storyteller_spec(memory_budget=budget, **larger))


@pytest.mark.long
def test_advice_keeps_the_arena_that_the_spec_fixes() -> None:
    cache = {"max_sequences": 4, "num_blocks": 200}
    whole = compile_spec(storyteller_spec(cache=cache)).artifact.plan.largest_memory
    budget = whole.total_bytes - whole.arena_bytes // 2
    with pytest.raises(BudgetError, match=r"the largest that fits: cache.num_blocks (\d+)$") as error:
        compile_spec(storyteller_spec(cache=cache, memory_budget=budget))
    blocks = int(str(error.value).rpartition(" ")[2])
    compile_spec(storyteller_spec(cache=cache | {"num_blocks": blocks}, memory_budget=budget))
    with pytest.raises(BudgetError):
        compile_spec(storyteller_spec(cache=cache | {"num_blocks": blocks + 1}, memory_budget=budget))


def test_a_budget_below_the_weights_says_that_nothing_fits() -> None:
    with pytest.raises(BudgetError, match="nothing fits: use smaller weight formats or a larger budget"):
        compile_spec(storyteller_spec(memory_budget="64MiB"))


@pytest.mark.parametrize(("budget", "rank"), [(["8MiB", "64MiB"], 0), (["64MiB", "8MiB"], 1), ("8MiB", 0)])
def test_the_rank_that_is_over_its_budget_is_named(budget: Any, rank: int) -> None:
    split = Parallel(tensor=2, shares=(0.5, 0.5))
    with pytest.raises(BudgetError, match=f"^rank {rank} of storyteller needs .* its memory_budget is 8.0 MiB; give"):
        compile_spec(storyteller_spec(memory_budget=budget, parallel=split), targets=("cpu",))


def test_ranks_have_shares_as_their_budgets_where_nothing_else_is_said() -> None:
    spec = storyteller_spec(memory_budget=["64MiB", "32MiB"], parallel=Parallel(tensor=2))
    split = compile_spec(spec, targets=("cpu",)).artifact.parallel
    assert split is not None
    first, second = (rank.memory["cpu"] for rank in split.ranks)
    assert first.weights_bytes / second.weights_bytes == pytest.approx(2, rel=0.05)
    assert (first.budget_bytes, second.budget_bytes) == (64 << 20, 32 << 20)


@pytest.mark.parametrize("cache", [{"num_blocks": 63}, {"memory_budget": "5MiB"}])
def test_an_arena_that_cannot_hold_one_sequence_is_refused(cache: dict[str, Any]) -> None:
    with pytest.raises(BudgetError, match=r"the largest context that fits is \d+, with 1 sequence"):
        compile_spec(storyteller_spec(cache=cache))


def test_an_arena_smaller_than_all_sequences_is_allowed() -> None:
    plan = compile_spec(storyteller_spec(cache={"num_blocks": 70, "max_sequences": 4})).artifact.plan
    assert plan.arena.num_blocks == 70


@pytest.mark.parametrize(
    ("cache", "context", "mode"),
    [
        ({"mode": "auto", "max_sequences": 1}, 1024, "contiguous"),
        ({"mode": "auto", "max_sequences": 1}, 8192, "paged"),
        ({"mode": "auto", "max_sequences": 2}, 1024, "paged"),
        ({"mode": "paged", "max_sequences": 1}, 1024, "paged"),
    ],
)
def test_auto_is_contiguous_for_one_short_sequence(cache: dict[str, Any], context: int, mode: str) -> None:
    artifact = compile_spec(storyteller_spec(cache=cache, model={"context": context})).artifact
    assert artifact.plan.arena.mode == mode
    tables = [k.name for k in artifact.plan.first.kernels if any(p.name == "block_tables" for p in k.inputs)]
    assert bool(tables) == (mode == "paged")


def test_auto_asks_the_chips_table() -> None:
    rule = GeometryRule(
        sizes={"contiguous_context": 1023}, because="pages are as fast", origin="predicted", labels=("arena",)
    )
    chip = find_chip("generic").model_copy(update={"geometry": (rule,)})
    modes = {}
    for context in (1023, 1024):
        plan = compile_spec(
            storyteller_spec(cache={"mode": "auto"}, model={"context": context}), chip=chip
        ).artifact.plan
        modes[context] = plan.arena.mode
        assert plan.arena_chosen is not None and plan.arena_chosen.sizes == {"contiguous_context": 1023}
        assert plan.arena_chosen.why == {"contiguous_context": "pages are as fast (predicted)"}
    assert modes == {1023: "contiguous", 1024: "paged"}
    for cache in ({"mode": "paged"}, {"mode": "contiguous"}, {"num_blocks": 70}, {"max_sequences": 2}):
        plan = compile_spec(storyteller_spec(cache={"mode": "auto"} | cache), chip=chip).artifact.plan
        assert plan.arena_chosen is None and plan.arena.mode == cache.get("mode", "paged")


@pytest.mark.parametrize(
    ("ratio", "head_dim", "dtype"),
    few_of([1, 3, 8, 28, 48, 71, 128], [32, 40, 64, 80, 96, 128, 160, 192, 248, 256], ["f32", "bf16"]),
)
def test_every_gqa_ratio_and_head_dim_has_kernels(ratio: int, head_dim: int, dtype: str) -> None:
    attention = {"num_heads": ratio, "num_kv_heads": 1, "head_dim": head_dim}
    whole = load_spec(find_spec("storyteller")).model.attention.model_dump() | attention
    spec = storyteller_spec(model={"attention": whole, "num_layers": 1}, cache={"dtype": dtype})
    kernels = compile_spec(spec).artifact.plan.first.kernels
    assert max(kernel.threadgroup_bytes for kernel in kernels) <= 32768
    assert max(kernel.threads for kernel in kernels) <= 1024


def test_a_malformed_debug_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXR_DEBUG", "loud")
    with pytest.raises(MlxrError, match="MLXR_DEBUG is 'loud'; expected a level from 0 to 4"):
        compile_spec(storyteller_spec())


@pytest.mark.parametrize(("level", "expected"), [("1", "pass merge_qkv"), ("2", " norm("), ("3", "[[kernel]]")])
def test_debug_levels_show_timings_graphs_and_sources(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str, expected: str
) -> None:
    monkeypatch.setenv("MLXR_DEBUG", level)
    compile_spec(storyteller_spec())
    shown = capsys.readouterr()
    assert expected in shown.err
    assert not shown.out


@pytest.mark.parametrize(("targets", "problem"), [(("gpu",), "there is no target 'gpu'"), ((), "no target is named")])
def test_targets_that_do_not_exist_are_refused(targets: tuple[str, ...], problem: str) -> None:
    with pytest.raises(PlanError, match=f"{problem}; targets are metal, cpu"):
        compile_spec(storyteller_spec(), targets=targets)
