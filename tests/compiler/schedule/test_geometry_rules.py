"""Geometry by launch: which rules hold where, which of them wins, and what the plan makes of it."""

import re

import pytest

from mlxr.compiler.artifact.chip import Chip
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.artifact.kernel_entry import KernelEntry
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import layout_of
from mlxr.compiler.schedule.geometry import Geometry, OneRow, SeveralRows
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr_tests.family_specs import family_spec
from mlxr_tests.specs import compiled, small_spec

QKV = Site.of_weight("qkv", layout_of([(WeightFormat.Q4_K, 512), (WeightFormat.Q6_K, 128)], 256))


def rule(outputs: int = 2, **conditions: object) -> GeometryRule:
    fields: dict[str, object] = {"sizes": {"matvec_outputs": outputs}, "because": f"{outputs}", "origin": "predicted"}
    return GeometryRule.model_validate(fields | conditions)


def plan_for(*rules: GeometryRule, name: str | None = None, **changes: object) -> Plan:
    spec = family_spec(name) if name else small_spec(**changes)
    return compile_spec(spec, targets=("metal",), chip=Chip(name="one", title="One", geometry=rules)).artifact.plan


def kernel(plan: Plan, label: str) -> KernelEntry:
    return next(kernel for kernel in plan.first.kernels if kernel.label == label)


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({}, True),
        ({"sites": ("qkv 640x256 q4_k+q6_k",)}, True),
        ({"sites": ("qkv 640x256 q4_k",)}, False),
        ({"labels": ("o", "qkv")}, True),
        ({"labels": ("o",)}, False),
        ({"formats": ("q6_k", "q4_k", "f32")}, True),
        ({"formats": ("q4_k",)}, False),
        ({"min_outputs": 640, "max_outputs": 640}, True),
        ({"min_outputs": 641}, False),
        ({"max_outputs": 639}, False),
        ({"min_columns": 256, "max_columns": 256}, True),
        ({"max_columns": 255}, False),
        ({"min_bits": 4, "max_bits": 5}, True),
        ({"min_bits": 5}, False),
        ({"labels": ("qkv",), "max_bits": 4}, False),
    ],
)
def test_a_rule_holds_where_all_its_conditions_do(conditions: dict[str, object], holds: bool) -> None:
    assert rule(**conditions).holds(QKV) is holds


def test_of_rules_that_hold_the_last_one_wins_and_gives_the_reason() -> None:
    table = GeometryTable(
        Geometry.of(matvec_simdgroups=8), (rule(2), rule(4, labels=("qkv",)), rule(16, labels=("o",)))
    )
    choice = table.choose(QKV)
    assert (choice.geometry.one_row.outputs, choice.geometry.one_row.simdgroups) == (4, 8)
    assert dict(choice.sizes(OneRow).why) == {"matvec_outputs": "4 (predicted)"}
    assert dict(choice.sizes(SeveralRows).why) == {}
    assert list(choice.sizes("partition", OneRow).sizes) == [*OneRow.names(), "partition"]
    assert list(choice.sizes(OneRow, without=("matvec_split",)).sizes) == [
        *OneRow.names("outputs", "simdgroups", "unroll", "threadgroups", "stages", "wanted_kib", "leads", "mma")
    ]


def test_a_rule_that_no_launch_can_meet_is_refused() -> None:
    with pytest.raises(ValueError, match="9 is more than max_outputs, 8: no launch meets both"):
        rule(min_outputs=9, max_outputs=8)


def test_rules_that_contradict_the_kernels_are_refused_when_they_meet() -> None:
    wide = GeometryRule(sizes={"matmul_outputs": 8}, because="wide", origin="predicted")
    with pytest.raises(PlanError, match="matmul_tile 8 x matmul_outputs 8 must be at most 32"):
        plan_for(wide)


def test_each_launch_has_its_own_geometry() -> None:
    plan = plan_for(rule(2, labels=("qkv",)), rule(8, min_columns=88))
    kernels = {label: kernel(plan, label) for label in ("qkv", "o", "gate_up", "down", "logits")}
    assert {label: k.chosen and k.chosen.sizes["matvec_outputs"] for label, k in kernels.items()} == {
        **{"qkv": 2, "o": 8, "gate_up": 4, "down": 8, "logits": 4}
    }
    threadgroups = {
        plan.first.kernel(la.kernel).label: la.threadgroups[0].times for la in plan.first.phase("decode").launches
    }
    for label, entry in kernels.items():
        assert entry.chosen
        rows = int(re.findall(r" (\d+)x", entry.chosen.site)[0])
        each = entry.chosen.sizes["matvec_outputs"] * entry.chosen.sizes["matvec_simdgroups"]
        assert threadgroups[label] == -(-rows // each)


def test_formats_decide_too() -> None:
    changes = {"weights": {"default": "f16", "mlp": "f32"}, "model__hidden_size": 64}
    plan = plan_for(rule(8, formats=("f16",)), rule(16, min_bits=32), **changes)
    sizes = {k.label: k.chosen.sizes.get("matvec_outputs") for k in plan.first.kernels if k.chosen}
    assert (sizes["qkv"], sizes["o"], sizes["gate_up"], sizes["down"]) == (8, 8, 16, 16)


def test_experts_are_sites_of_one_experts_size() -> None:
    plan = plan_for(rule(8, labels=("experts",)), name="experts-shared-gate")
    experts, down = kernel(plan, "experts"), kernel(plan, "experts_down")
    assert experts.chosen and down.chosen
    assert (experts.chosen.sizes["matvec_outputs"], down.chosen.sizes["matvec_outputs"]) == (8, 4)
    weight = next(w for w in plan.weights if w.name.endswith("experts.down"))
    rows, columns = (int(n) for n in re.findall(r"(\d+)x(\d+)", down.chosen.site)[0])
    assert weight.shape[0] % rows == 0 and rows < weight.shape[0]
    assert weight.shape[1] == columns


def test_the_partition_is_the_same_for_all_layers() -> None:
    short = GeometryRule(sizes={"partition": 16}, labels=("attend",), because="short", origin="measured")
    plan = plan_for(short)
    assert plan.whole_context == 16
    assert kernel(plan, "attend_partition").chosen == kernel(plan, "attend").chosen
    conditions = {str(la.when) for la in plan.first.phase("decode").launches if la.when and la.when.dim == "context"}
    assert conditions == {"context <= 16", "context >= 17"}


def test_a_step_is_a_site_of_all_matrices() -> None:
    layouts = [layout_of([(WeightFormat.BF16, 96)], 64), layout_of([(WeightFormat.F32, 32)], 64)]
    site = Site.of_step(3, 64, layouts)
    assert (str(site), site.bits) == ("step 3x64 bf16+f32", 20)
    one = GeometryRule(sizes={"step_threads": 512}, labels=("step",), because="one", origin="predicted")
    plan = plan_for(one)
    decode, prefill = plan.first.phase("decode").chosen, plan.first.phase("prefill").chosen
    assert decode and prefill is None
    assert (dict(decode.sizes), dict(decode.why)) == (
        {"step_threads": 512, "step_rank_threads": 0, "step_sequences": 1, "step_blocks": 1},
        {"step_threads": "one (predicted)"},
    )
    without = plan_for().first.phase("decode").chosen
    assert without and without.sizes["step_threads"] == 0
    assert plan.first.kernels == plan_for().first.kernels, "the same texts either way"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"step_threads": 48}, "step_threads is 48; expected a multiple of 32 up to 1024"),
        ({"step_threads": 1056}, "step_threads is 1056"),
        ({"step_threads": 1024, "step_blocks": 3}, "step_threads 1024 x step_blocks 3 must be at most 2048"),
        ({"step_threads": 512, "step_blocks": 0}, "step_blocks is 0; expected at least 1"),
        ({"attend_many": 1}, "attend_many is 1; expected 0, or at least 2"),
        ({"mma_min_rows": 10, "mma_max_rows": 4}, "mma_min_rows 10 must be at most mma_max_rows, 4"),
        ({"mma_simdgroups": 15}, "mma_simdgroups is 15; expected 1 to 14"),
        ({"matvec_mma": 1, "matvec_outputs": 16, "matvec_unroll": 8}, "16 or 32 outputs and 1, 2 or 4 steps"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Geometry.of(**sizes)


def test_experts_with_mma_are_refused() -> None:
    wrong = rule(sizes={"matvec_mma": 1, "matvec_outputs": 16}, labels=("experts",))
    with pytest.raises(PlanError, match=r"matvec_mma is 1 for experts .* experts have no such kernel; set it to 0"):
        plan_for(wrong, name="experts-shared-gate")


@pytest.mark.parametrize(
    ("dtype", "geometry", "names"),
    [
        ("bf16", Geometry(), {"attend_mma", "attend_many_mma", "partition_mma", "prefill_mma"}),
        ("f32", Geometry(), set()),
        ("bf16", Geometry.of(step_threads=512), {"attend_many_mma", "prefill_mma"}),
    ],
    ids=["open", "never", "not as one kernel"],
)
def test_kernels_tell_of_matrix_instructions_where_they_are_open(
    dtype: str, geometry: Geometry, names: set[str]
) -> None:
    attention = {"num_heads": 8, "num_kv_heads": 1, "head_dim": 64}
    spec = small_spec(model__attention=attention, cache={"dtype": dtype, "block_size": 4}, activation_dtype=dtype)
    chosen = [kernel.chosen for kernel in compiled(spec, geometry).plan.first.kernels if "attend" in kernel.label]
    assert {name for geometry in chosen if geometry for name in geometry.sizes if name.endswith("_mma")} == names
