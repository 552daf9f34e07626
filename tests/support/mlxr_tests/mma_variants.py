"""The smallest specs of the kernels with matrix instructions (MMA), and what other variants share with them."""

from typing import Any

from mlxr.compiler.artifact import ModelSpec
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.delta_cases import delta_spec
from mlxr_tests.specs import small_spec

FOUR: dict[str, Any] = {
    "activation_dtype": "bf16",
    "cache": {"dtype": "bf16", "block_size": 16, "max_sequences": 4},
}
EXPERTS: dict[str, Any] = {"count": 40, "per_token": 3, "normalise": True, "scale": 2.5}
BLOCKS = {
    "model__num_layers": 1,
    "model__hidden_size": 256,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 512},
    "model__context": 64,
    "prefill_chunk": 64,
}

MMA_VARIANTS: dict[str, tuple[ModelSpec, Geometry, tuple[str, ...]]] = {
    # As in VARIANTS.
    "codes-mma": (
        small_spec(
            **BLOCKS,
            weights={"default": "affine4_g64_bf16", "tensors": {"*.down": "q4_k", "*.up": "q6_k"}, "norm": "f32"},
            activation_dtype="bf16",
        ),
        Geometry.of(matvec_mma=1, matvec_outputs=16, matvec_simdgroups=4, matvec_split=2, matvec_unroll=2),
        ("qkv", "gate_up", "down"),
    ),
    "codes-stream": (
        small_spec(
            **BLOCKS | {"model__hidden_size": 512},
            weights={"default": "q4_k", "tensors": {"*.v": "q6_k"}},
            activation_dtype="bf16",
        ),
        Geometry.of(
            **{"matvec_mma": 1, "matvec_outputs": 16, "matvec_simdgroups": 2, "matvec_threadgroups": 9},
            matvec_stages=2,
            matvec_wanted_kib=4,
        ),
        ("qkv", "gate_up"),
    ),
    "codes-digits": (
        small_spec(
            **BLOCKS | {"model__hidden_size": 512},
            weights={"default": "q4_k", "tensors": {"*.v": "q6_k"}},
            activation_dtype="bf16",
        ),
        Geometry.of(matvec_mma=2, matvec_outputs=16, matvec_simdgroups=4, matvec_split=4, matvec_threadgroups=9),
        ("qkv", "gate_up", "o"),
    ),
    "codes-digits-stream": (
        small_spec(
            **BLOCKS | {"model__hidden_size": 512},
            weights={"default": "q4_k", "tensors": {"*.v": "q6_k"}},
            activation_dtype="bf16",
        ),
        Geometry.of(
            matvec_mma=2, matvec_outputs=16, matvec_simdgroups=4, matvec_split=4, matvec_threadgroups=9, matvec_stages=2
        ),
        ("qkv", "gate_up"),
    ),
    "rows-mma": (
        small_spec(
            **BLOCKS,
            model__vocab_size=80,
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry.of(mma_min_rows=2, mma_simdgroups=4, attend_many=3),
        ("normalise", "o_mma8", "gate_up_mma64", "logits_mma8", "attend_many"),
    ),
    "rows-stages": (
        small_spec(**BLOCKS, weights={"default": "bf16"}, **FOUR),
        Geometry.of(mma_min_rows=2, mma_simdgroups=2, mma_outputs=32, mma_stages=2, mma_together=2),
        ("gate_up_mma8", "o_mma64"),
    ),
    "rows-wide": (
        small_spec(**BLOCKS, weights={"default": "bf16"}, **FOUR),
        Geometry.of(mma_min_rows=2, mma_wide_outputs=96, mma_wide_simdgroups=8, mma_wide_together=2, mma_wide_stages=2),
        ("gate_up_mma64", "o_mma64"),
    ),
    "quantised-rows-mma": (
        small_spec(
            **BLOCKS,
            weights={"default": "q4_k", "tensors": {"*.v": "q6_k", "*.down": "affine4_g64_bf16"}},
            **FOUR,
        ),
        Geometry.of(mma_min_rows=2, mma_simdgroups=4, mma_outputs=32),
        ("qkv_mma8", "gate_up_mma32", "down_mma16"),
    ),
    "rows-stream": (
        small_spec(
            **BLOCKS | {"model__hidden_size": 512}, weights={"default": "q4_k", "tensors": {"*.v": "q6_k"}}, **FOUR
        ),
        Geometry.of(
            mma_min_rows=2,
            mma_max_rows=8,
            mma_simdgroups=2,
            mma_outputs=64,
            mma_stages=2,
            mma_threadgroups=9,
            mma_together=2,
        ),
        ("qkv_mma8", "gate_up_mma8"),
    ),
    "gemm-mma": (
        small_spec(
            **BLOCKS,
            weights={"default": "affine4_g64_bf16", "tensors": {"*.k": "q4_k", "*.v": "q6_k", "*.up": "mxfp4"}},
            activation_dtype="bf16",
        ),
        Geometry.of(gemm_mma=1),
        ("qkv_gemm_mma", "gate_up_gemm_mma", "down_gemm_mma"),
    ),
    "expert-streams": (
        small_spec(
            **BLOCKS
            | {
                "model__hidden_size": 512,
                "model__mlp": {
                    "intermediate_size": 256,
                    "experts": EXPERTS | {"router": "softmax_topk", "per_token": 4},
                },
            },
            model__tensor_names="canonical",
            weights={"default": "q4_k", "tensors": {"*.down": "q6_k"}},
            **FOUR,
        ),
        Geometry.of(
            **{"matvec_mma": 1, "matvec_outputs": 16, "matvec_simdgroups": 2, "matvec_split": 1, "matvec_stages": 1},
            **{"experts_mma_tokens": 4, "mma_simdgroups": 2, "mma_outputs": 32, "mma_stages": 2},
        ),
        ("routed_experts", "experts_down", "route_order", "experts_codes8", "experts_down_codes8"),
    ),
    "rows-shared": (
        small_spec(
            **BLOCKS | {"model__mlp": {"intermediate_size": 256, "experts": EXPERTS | {"router": "softmax_topk"}}},
            model__tensor_names="canonical",
            weights={"default": "q4_k", "tensors": {"*.router": "f32"}},
            **FOUR,
        ),
        Geometry.of(matmul_shared=2),
        ("router_shared",),
    ),
    "expert-tiles": (
        small_spec(
            **BLOCKS | {"model__mlp": {"intermediate_size": 256, "experts": EXPERTS | {"router": "softmax_topk"}}},
            model__tensor_names="canonical",
            weights={"default": "q8_0", "tensors": {"*.experts.gate": "q4_k", "*.experts.up": "q4_k"}},
            activation_dtype="bf16",
            parallel={"tensor": 2},
        ),
        Geometry.of(gemm_mma=1, experts_min_rows=1),
        ("expert_order", "experts_gemm_mma", "experts_down_gemm_mma", "expert_sum"),
    ),
    "expert-wide": (
        small_spec(
            **BLOCKS
            | {
                "model__hidden_size": 512,
                "model__mlp": {"intermediate_size": 256, "experts": EXPERTS | {"router": "softmax_topk"}},
            },
            model__tensor_names="canonical",
            weights={"default": "q4_k", "tensors": {"*.down": "q6_k"}},
            activation_dtype="bf16",
        ),
        Geometry.of(
            **{"gemm_mma": 1, "experts_min_rows": 1},
            **{"mma_wide_stages": 2, "mma_max_rows": 8, "mma_simdgroups": 4, "mma_threadgroups": 4},
        ),
        ("experts_numbers", "experts_wide8", "experts_down_numbers", "experts_down_wide8"),
    ),
    "latent-tiles": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=1,
            model__attention={
                "num_heads": 4,
                "num_kv_heads": 1,
                "head_dim": 64,
                "latent": {"kv_rank": 256, "q_rank": 64, "nope_dim": 32, "rope_dim": 32, "v_dim": 32},
            },
            weights={"default": "q8_0"},
            activation_dtype="bf16",
            cache={"dtype": "bf16", "block_size": 16, "max_sequences": 2},
            model__hidden_size=64,
            model__mlp={"intermediate_size": 96},
        ),
        Geometry.of(gemm_mma=1, prefill_mma=1),
        ("attend_latent_prefill_mma", "latent_queries_gemm_mma", "head_product_gemm_mma"),
    ),
    "attention-mma": (
        small_spec(
            model__attention={"num_heads": 4, "num_kv_heads": 2, "head_dim": 64},
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry.of(
            attend_mma=1,
            attend_together=2,
            attend_together_simdgroups=4,
            attend_together_context=32,
            partition=32,
            partition_mma=1,
            attend_many=3,
            attend_many_mma=1,
            attend_crowd=4,
            attend_crowd_resident=2,
            prefill_mma=1,
            prefill_rows=64,
        ),
        ("attend_mma", "attend_partition_mma", "attend_many_mma", "attend_crowd_mma", "attend_prefill_mma"),
    ),
    "prefill-tiles": (
        small_spec(
            model__attention={"num_heads": 4, "num_kv_heads": 2, "head_dim": 64},
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry.of(prefill_mma=2, prefill_rows=64),
        ("attend_prefill_tiles_mma",),
    ),
    "long-heads-mma": (
        small_spec(
            model__attention={"num_heads": 4, "num_kv_heads": 2, "head_dim": 256, "sliding_window": 40},
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry.of(prefill_mma=1),
        ("attend_prefill_wide_mma",),
    ),
    "delta-chunks": (
        delta_spec(
            key_dim=64,
            value_dim=48,
            of_model={
                "weights": {"default": "bf16"},
                "model__context": 192,
                "prefill_chunk": 128,
                **FOUR,
            },
        ),
        Geometry.of(delta_chunk_tokens=24),
        ("delta_solve", "delta_chunks"),
    ),
}
