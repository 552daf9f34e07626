"""Exact and deterministic programs: a sequence leaves the same bits in any company, however it is cut into steps."""

from typing import Any

import pytest

from mlxr_tests.c_harness import marches
from mlxr_tests.cpu_specs import BLOCKS, PAGED, SPECS
from mlxr_tests.family_specs import FAMILY_SPECS, NEIGHBOURS
from mlxr_tests.few import few
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.ways import check_same_bits

# Contexts of several tiles of keys, and steps of more rows than are few anywhere.
LONGER: dict[str, Any] = {"model__context": 150, "prefill_chunk": 80}
EXACT: dict[str, Any] = {"compute": "exact"}
STEADY: dict[str, Any] = {"compute": "fast", "deterministic": True}
HALF_CACHE = {"cache": PAGED | {"dtype": "f16", "block_size": 8}, "model__tensor_names": "canonical"}
CASES = {
    **{f"exact-{name}": changes | EXACT for name, changes in SPECS.items() if not name.startswith("fast-")},
    **{f"steady-{name}": changes | STEADY for name, changes in SPECS.items()},
    **{f"exact-{name}": HALF_CACHE | {"weights": {"default": "bf16"}} | of | EXACT for name, of in NEIGHBOURS.items()},
    **{f"steady-{name}": HALF_CACHE | {"weights": {"default": "f16"}} | of | STEADY for name, of in NEIGHBOURS.items()},
    "exact-shared-expert": HALF_CACHE | FAMILY_SPECS["experts-shared-gate"] | EXACT,
    "exact-alibi": HALF_CACHE | FAMILY_SPECS["alibi"] | EXACT,
    "steady-alibi": HALF_CACHE | FAMILY_SPECS["alibi"] | STEADY,
    "exact-short-conv": HALF_CACHE | FAMILY_SPECS["short-conv"] | EXACT,
    "steady-short-conv": FAMILY_SPECS["short-conv-alone"] | STEADY,
    "exact-delta": FAMILY_SPECS["delta"] | EXACT,
    "steady-delta": HALF_CACHE | FAMILY_SPECS["delta"] | STEADY,
    "exact-delta-products": HALF_CACHE | FAMILY_SPECS["delta-products"] | {"weights": {"default": "bf16"}} | EXACT,
    "steady-delta-products": FAMILY_SPECS["delta-products"] | STEADY,
    "exact-ssm": FAMILY_SPECS["ssm"] | EXACT,
    "steady-ssm": FAMILY_SPECS["ssm-beside-attention"] | STEADY,
    "exact-latent": HALF_CACHE | FAMILY_SPECS["latent"] | {"weights": {"default": "bf16"}} | EXACT,
    "steady-latent": HALF_CACHE | FAMILY_SPECS["latent-one-projection"] | {"weights": {"default": "f16"}} | STEADY,
    "steady-quantised-gemma": HALF_CACHE
    | NEIGHBOURS["gemma-like"]
    | BLOCKS
    | {
        "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32, "softcap": 5.0},
        "model__layer_types": {"sliding": {"attention": {"sliding_window": 70}}, "full": {}},
        "weights": {"default": "q4_k", "tensors": {"*.down": "q6_k"}},
        "cache": PAGED | {"dtype": "q8"},
    }
    | STEADY,
}
SHORT = ["exact-q4_k_m", "exact-gpt-oss-like", "steady-quantised-gemma"]
LEAST = [(name, march) for march in marches() if march != "native" for name in SHORT]


def check(name: str) -> None:
    artifact = compiled(small_spec(**CASES[name] | LONGER), target="cpu")
    assert artifact.plan.first.batch_invariant
    check_same_bits(artifact, threads=(2, 1))


@pytest.mark.parametrize("name", few(CASES, ["exact-q4_k_m"]))
def test_any_steps_leave_the_same_bits(name: str) -> None:
    check(name)


@pytest.mark.long
@pytest.mark.parametrize(("name", "march"), LEAST)
def test_lesser_instruction_sets(monkeypatch: pytest.MonkeyPatch, name: str, march: str) -> None:
    monkeypatch.setenv("MLXR_CPU_ARCH", march)
    check(name)


@pytest.mark.long
def test_other_programs_leave_other_bits() -> None:
    """Or else the tests above could not fail."""
    artifact = compiled(small_spec(**SPECS["fast-bf16"] | LONGER), target="cpu")
    assert not artifact.plan.first.batch_invariant
    with pytest.raises(AssertionError, match="is not 80\\+70: "):
        check_same_bits(artifact, threads=(2,))
