"""Which types each target computes with, where the spec leaves them open, and what is told of the choice."""

from typing import Any

import pytest

from mlxr.compiler.artifact.chip import HalfType
from mlxr.compiler.artifact.plan import padded
from mlxr.compiler.chips.catalog import known_chips
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.cpu.target import cpu_types
from mlxr.compiler.targets.metal.types import metal_types
from mlxr_tests.specs import small_spec

WIDE = {
    "model__hidden_size": 64,
    "model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 96, "activation": "silu"},
}
"""Rows that every format can hold."""
F16_CHIP = HalfType(type="f16", because="it is quicker", origin="predicted")


def open_spec(weights: dict[str, Any], **changes: Any) -> ModelSpec:
    return small_spec(weights=weights, activation_dtype="auto", cache__dtype="auto", **WIDE | changes)


@pytest.mark.parametrize(
    ("weights", "half", "activations", "why"),
    [
        ({"default": "bf16"}, None, "bf16", "bf16"),
        ({"default": "f16"}, None, "f16", "f16"),
        ({"default": "q8_0"}, None, "bf16", "range"),
        ({"default": "affine4_g32_f16"}, None, "f16", "scales"),
        ({"default": "affine4_g32_bf16"}, None, "bf16", "scales"),
        ({"default": "f32"}, None, "f32", "all weights"),
        ({"default": "f32"}, F16_CHIP, "f32", "all weights"),
        ({"default": "affine4_g32_bf16"}, F16_CHIP, "f16", "quicker"),
        ({"default": "bf16"}, F16_CHIP, "bf16", "bf16"),
    ],
)
def test_gpus_compute_in_the_16_bits_of_the_weights(
    weights: dict[str, Any], half: HalfType | None, activations: str, why: str
) -> None:
    types = metal_types(open_spec(weights), half)
    assert (types.activations, types.cache) == (activations, activations)
    assert why in types.activations_because


@pytest.mark.parametrize("weights", ["q8_0", "f16"])
def test_models_that_scale_embeddings_never_compute_in_f16(weights: str) -> None:
    types = metal_types(open_spec({"default": weights}, model__embedding_scale=8.0), F16_CHIP)
    assert types.activations is DType.BF16 and "exceed the range of f16" in types.activations_because


def test_cpus_compute_in_f32_and_cache_half() -> None:
    assert (cpu_types(open_spec({"default": "q8_0"})).activations, cpu_types(open_spec({"default": "q8_0"})).cache) == (
        DType.F32,
        DType.F16,
    )
    assert cpu_types(open_spec({"default": "f32"})).cache is DType.F32


def test_what_the_spec_names_is_taken() -> None:
    spec = open_spec({"default": "q8_0"}).model_copy(update={"activation_dtype": "f32"})
    spec = spec.model_copy(update={"cache": spec.cache.model_copy(update={"dtype": "q8"})})
    for types in (metal_types(spec, F16_CHIP), cpu_types(spec)):
        assert (types.activations, types.cache, types.cache_because) == (DType.F32, DType.Q8, "the spec says so")


def test_one_artifact_has_the_types_of_each_target() -> None:
    plan = compile_spec(open_spec({"default": "bf16"})).artifact.plan
    assert [(p.types.target, str(p.types.activations), str(p.types.cache)) for p in plan.programs.values()] == [
        ("metal", "bf16", "bf16"),
        ("cpu", "f32", "f16"),
    ]
    assert (plan.programs["metal"].arena.cache_type, plan.programs["cpu"].arena.cache_type) == (DType.BF16, DType.F16)
    assert plan.arena == plan.programs["metal"].arena


def test_chips_before_m3_prefer_f16() -> None:
    preferred = {name: chip.half.type for name, chip in known_chips().items() if chip.half}
    assert set(preferred.values()) == {"f16"}
    assert {name.partition("-")[0] for name in preferred} == {"m1", "m2"}


def test_steps_of_prompts_have_few_sizes() -> None:
    sizes = sorted({padded(tokens, 32, 2048) for tokens in range(1, 2049)})
    assert sizes[:10] == [8, 16, 32, 64, 96, 128, 160, 192, 224, 256]
    assert sizes[-1] == 2048 and len(sizes) == 38
    assert [padded(tokens, 32, 2048) for tokens in (512, 513, 641, 768, 769)] == [512, 544, 672, 768, 832]
    for tokens in range(1, 2049):
        size = padded(tokens, 32, 2048)
        assert tokens <= size <= max(2 * tokens, 8) and (tokens <= 256 or 8 * size < 9 * tokens + 8 * 8)
        assert padded(size, 32, 2048) == size
    assert padded(100, 0, 2048) == 100
    assert padded(100, 32, 110) == 110


def test_no_targets_arena_exceeds_the_budget_of_the_cache() -> None:
    budget = 64 << 10
    spec = open_spec({"default": "f32"}, cache__memory_budget=budget, cache__max_sequences=64, cache__num_blocks=None)
    spec = spec.model_copy(update={"activation_dtype": "bf16"})
    plan = compile_spec(spec).artifact.plan
    sizes = {target: program.arena.size_bytes for target, program in plan.programs.items()}
    assert len(set(sizes.values())) > 1, "the caches are of different types"
    assert budget / 2 < max(sizes.values()) <= budget
