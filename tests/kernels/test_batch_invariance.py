"""Deterministic programs: a sequence leaves the same bits in any company, and however it is cut into steps."""

from typing import Any

import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.family_specs import FAMILY_SPECS
from mlxr_tests.few import few
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.ways import check_same_bits

pytestmark = pytest.mark.usefixtures("kernel_host")

SHORTER = {"model__context": 26, "prefill_chunk": 18}
PAGED = {"dtype": "f32", "block_size": 4, "max_sequences": 4, "mode": "paged"}
BLOCKS: dict[str, Any] = {
    "model__hidden_size": 256,
    "model__mlp": {"intermediate_size": 512},
    "activation_dtype": "bf16",
    "cache": PAGED | {"dtype": "bf16"},
}
TILES: dict[str, Any] = {
    "model__hidden_size": 96,
    "model__num_layers": 1,
    "model__mlp": {"intermediate_size": 160},
    "activation_dtype": "bf16",
    "cache": PAGED | {"dtype": "bf16"},
}
MMA = {"mma_min_rows": 2, "attend_mma": 1, "prefill_mma": 1, "prefill_rows": 64, "step_threads": 256}
CASES: dict[str, tuple[dict[str, Any], Geometry]] = {
    "everything": (
        {
            "model__tensor_names": "canonical",
            "model__norm": {"placement": "sandwich"},
            "model__attention": {
                "num_heads": 6,
                "num_kv_heads": 2,
                "head_dim": 48,
                "softcap": 4.0,
                "sinks": True,
                "qk_norm": {"scope": "head"},
            },
            "model__layer_types": {"sliding": {"attention": {"sliding_window": 9}}, "full": {}},
            "model__layer_pattern": ["sliding", "full"],
            "cache": PAGED | {"dtype": "q8", "block_size": 2},
        },
        Geometry.of(partition=16, attend_many=2, prefill_keys=8),
    ),
    "alibi": (FAMILY_SPECS["alibi"] | {"cache": PAGED | {"dtype": "q8"}}, Geometry.of(partition=16)),
    "short-conv": (FAMILY_SPECS["short-conv"] | {"cache": PAGED}, Geometry()),
    "delta": (FAMILY_SPECS["delta"] | {"cache": PAGED}, Geometry()),
    "delta-products": (FAMILY_SPECS["delta-products"] | {"cache": PAGED}, Geometry()),
    "ssm": (FAMILY_SPECS["ssm"] | {"cache": PAGED}, Geometry()),
    "latent": (FAMILY_SPECS["latent"] | {"cache": PAGED | {"dtype": "q8"}}, Geometry.of(partition=16)),
    "quantised": (
        BLOCKS
        | {
            "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
            "weights": {"default": "q4_k", "tensors": {"*.down": "q6_k"}},
        },
        Geometry.of(matvec_mma=0, gemm_min_rows=3, mlx_quantised_min_rows=2),
    ),
    "mma": (
        TILES
        | {
            "model__attention": {"num_heads": 2, "num_kv_heads": 1, "head_dim": 64, "sliding_window": 9},
            "weights": {"default": "bf16"},
        },
        Geometry.of(**MMA, mlx_min_rows=2, mlx_min_tokens=2),
    ),
    "long-heads-mma": (
        TILES
        | {
            "model__attention": {"num_heads": 4, "num_kv_heads": 1, "head_dim": 256, "sliding_window": 19},
            "weights": {"default": "bf16"},
        },
        Geometry.of(**MMA | {"prefill_keys": 16, "prefill_rows_per_simdgroup": 8}),
    ),
    "quantised-mma": (
        BLOCKS
        | {
            "model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64},
            "weights": {"default": "affine4_g64_bf16"},
        },
        Geometry.of(**MMA, gemm_mma=1, gemm_min_rows=9),
    ),
    "f16-contiguous": (
        {
            "cache": {"dtype": "f16", "mode": "contiguous", "block_size": 16},
            "activation_dtype": "f16",
            "weights": {"default": "f16"},
            "model__tie_embeddings": True,
            "model__attention": {"num_heads": 8, "num_kv_heads": 1, "head_dim": 64},
        },
        Geometry.of(partition=16),
    ),
    "experts": (
        {
            "model__tensor_names": "canonical",
            "model__mlp": {
                "intermediate_size": 56,
                "experts": {
                    "count": 5,
                    "per_token": 2,
                    "router": "softmax_topk",
                    "shared": {"intermediate_size": 40, "gate": True},
                },
            },
            "cache": PAGED,
        },
        Geometry.of(partition=16),
    ),
}


@pytest.mark.parametrize("name", few(CASES, ["everything"]))
def test_any_steps_leave_the_same_bits(name: str) -> None:
    changes, geometry = CASES[name]
    artifact = compiled(small_spec(**changes, **SHORTER, deterministic=True), geometry)
    program = artifact.plan.first
    assert program.batch_invariant and not program.step_kernels
    assert not any(launch.needs_library or launch.yields for phase in program.phases for launch in phase.launches)
    check_same_bits(artifact)


@pytest.mark.long
def test_other_programs_leave_other_bits() -> None:
    """Or else the test above could not fail."""
    changes, geometry = CASES["everything"]
    artifact = compiled(small_spec(**changes, **SHORTER), geometry)
    assert not artifact.plan.first.batch_invariant
    with pytest.raises(AssertionError, match="is not 18\\+8: "):
        check_same_bits(artifact)
