"""The smallest spec of each variant of the kernels, for goldens and signature tests."""

import functools
from typing import Any

from mlxr.compiler.artifact import Artifact, ModelSpec, WeightFormat
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.family_specs import FAMILY_SPECS
from mlxr_tests.mma_variants import BLOCKS, EXPERTS, FOUR, MMA_VARIANTS
from mlxr_tests.specs import small_spec

_BF16: dict[str, Any] = {"activation_dtype": "bf16", "weights": {"default": "bf16"}}
_ONE_LAYER: dict[str, Any] = {
    "model__num_layers": 1,
    "model__attention": {"num_heads": 2, "num_kv_heads": 1, "head_dim": 32},
}
_Q4 = _ONE_LAYER | {"model__attention__head_dim": 96, "cache__dtype": "q4"}

_EAGLE: dict[str, Any] = {
    "taps": [0, 1, 2],
    "hidden_size": 48,
    "vocab_size": 40,
    "attention": {"num_heads": 2, "num_kv_heads": 1, "head_dim": 32},
    "mlp": {"intermediate_size": 56},
    "embedding": True,
}
_FORMATS = (
    # q4_k and q6_k have a variant of their own
    *(str(fmt) for fmt in WeightFormat if fmt.is_quantised and not fmt.affine and fmt not in ("q4_k", "q6_k")),
    *(
        "affine2_g32_f16",
        "affine3_g64_bf16",
        "affine4_g128_f32",
        "affine5_g64_f16",
        "affine6_g64_f16",
        "affine8_g32_bf16",
    ),
)

VARIANTS: dict[str, tuple[ModelSpec, Geometry, tuple[str, ...]]] = {
    # name: spec, geometry, and the kernels that the variant is about (none: all)
    "contiguous-f32": (small_spec(**_ONE_LAYER, cache={"dtype": "f32", "mode": "contiguous"}), Geometry(), ()),
    "paged-bf16": (
        small_spec(
            **_ONE_LAYER,
            cache={"dtype": "bf16", "block_size": 16, "max_sequences": 2},
            **_BF16,
        ),
        Geometry(),
        ("embed", "qkv", "qkv_rows", "rope_cache_write", "attend", "attend_prefill", "gate_up_rows", "logits"),
    ),
    "hidden-bf16": (
        small_spec(
            **_ONE_LAYER,
            cache={"dtype": "bf16", "block_size": 4, "max_sequences": 2},
            **_BF16,
            output="hidden",
        ),
        Geometry(),
        ("hidden",),
    ),
    "texts-bf16": (
        small_spec(
            **_ONE_LAYER,
            model__attention__causal=False,
            prefill_chunk=40,
            cache={"dtype": "bf16", "mode": "paged"},
            **_BF16,
            output="hidden",
        ),
        Geometry(),
        ("attend_text",),
    ),
    "adapters-bf16": (
        small_spec(
            **_ONE_LAYER,
            cache={"dtype": "bf16", "block_size": 4, "max_sequences": 2},
            **_BF16,
            adapters={"rank": 8, "slots": 3},
        ),
        Geometry(),
        ("qkv_low", "qkv_adapted", "gate_up_adapted", "down_adapted"),
    ),
    "split-window-layer-f16": (
        small_spec(
            model__num_layers=1,
            model__attention={"num_heads": 2, "num_kv_heads": 2, "head_dim": 40, "sliding_window": 9},
            model__rope={"layout": "interleaved", "fraction": 0.5},
            cache={"dtype": "f16", "layout": "layer", "block_size": 4, "max_sequences": 2},
            activation_dtype="f16",
            weights={"default": "f16"},
        ),
        Geometry.of(partition=16),
        ("attend", "attend_partition", "attend_reduce", "attend_prefill", "rope_cache_write", "copy_blocks"),
    ),
    "bias-gelu": (
        small_spec(
            model__num_layers=1,
            model__attention=_ONE_LAYER["model__attention"] | {"qkv_bias": True, "output_bias": True},
            model__mlp={"intermediate_size": 40, "activation": "gelu", "bias": True},
        ),
        Geometry(),
        ("qkv", "o", "gate_up", "gate_up_rows"),
    ),
    "gelu-tanh": (
        small_spec(**_ONE_LAYER, model__mlp={"intermediate_size": 40, "activation": "gelu_tanh"}),
        Geometry(),
        ("gate_up",),
    ),
    "q8-softcap-sinks-yarn": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=1,
            model__attention={
                "num_heads": 6,
                "num_kv_heads": 2,
                "head_dim": 40,
                "sliding_window": 9,
                "softcap": 5.0,
                "sinks": True,
                "temperature": {"beta": 0.1, "original_context": 16},
            },
            model__rope={"scaling": {"kind": "yarn", "factor": 4.0, "original_context": 16, "attention_factor": 1.3}},
            cache={"dtype": "q8", "block_size": 1, "max_sequences": 2},
        ),
        Geometry.of(partition=16),
        ("attend", "attend_partition", "attend_reduce", "attend_prefill", "rope_cache_write", "copy_blocks"),
    ),
    "q4": (small_spec(**_Q4), Geometry(), ("attend", "attend_prefill", "rope_cache_write")),
    "no-rope": (
        small_spec(**_ONE_LAYER, model__rope=None, cache={"dtype": "q8", "mode": "contiguous"}),
        Geometry(),
        ("attend", "attend_prefill", "rope_cache_write"),
    ),
    "alibi": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=1,
            model__rope=None,
            model__attention={"num_heads": 6, "num_kv_heads": 2, "head_dim": 40, "alibi": 8.0},
        ),
        Geometry(),
        ("attend", "attend_prefill"),
    ),
    "parallel": (
        small_spec(**_ONE_LAYER, model__parallel_blocks=True, model__mlp={"intermediate_size": 40, "bias": True}),
        Geometry(),
        ("down_sum", "down_sum_rows"),
    ),
    "layer-norms": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=1,
            model__norm={"kind": "layer", "bias": True, "placement": "post"},
            model__residual_scale=0.5,
            model__attention={"num_heads": 2, "num_kv_heads": 1, "head_dim": 32, "qk_norm": {"scope": "all"}},
        ),
        Geometry(),
        ("norm", "qk_norm"),
    ),
    "rms-norms-bf16": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=1,
            model__hidden_size=1024,
            model__norm={"placement": "sandwich"},
            model__attention={"num_heads": 6, "num_kv_heads": 2, "head_dim": 40, "qk_norm": {"scope": "head"}},
            **_BF16,
        ),
        Geometry(),
        ("norm", "qk_norm"),
    ),
    "norms-of-a-rank": (
        small_spec(
            parallel={"tensor": 2},
            model__tensor_names="canonical",
            model__num_layers=1,
            model__attention={"num_heads": 6, "num_kv_heads": 2, "head_dim": 40, "qk_norm": {"scope": "all"}},
            activation_dtype="bf16",
        ),
        Geometry(),
        ("qk_norm", "qk_mean_squares"),
    ),
    "route-softmax": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=1,
            model__mlp={"intermediate_size": 56, "experts": EXPERTS | {"router": "softmax_topk"}},
        ),
        Geometry(),
        ("route",),
    ),
    "route-sigmoid-bias": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=1,
            model__mlp={"intermediate_size": 56, "experts": EXPERTS | {"router": "sigmoid", "selection_bias": True}},
        ),
        Geometry(),
        ("route", "routed_experts"),
    ),
    "q4_k_m": (
        small_spec(
            **BLOCKS,
            weights={
                "default": "q4_k",
                "embedding": "q6_k",
                "norm": "f32",
                "tensors": {"layers.0.attention.v": "q6_k", "layers.0.mlp.up": "q5_k"},
            },
        ),
        Geometry(),
        ("embed", "qkv", "qkv_rows", "qkv_gemm", "gate_up", "gate_up_gemm", "down", "down_gemm"),
    ),
    "for-mlx": (
        small_spec(
            **BLOCKS,
            model__rope={"scaling": {"kind": "yarn", "factor": 4.0, "original_context": 16}},
            activation_dtype="bf16",
            cache={"dtype": "bf16", "block_size": 4, "max_sequences": 2},
            weights={"default": "q4_k", "tensors": {"layers.0.attention.v": "q6_k"}},
        ),
        Geometry.of(mlx_quantised_min_rows=32, mlx_min_tokens=32),
        ("unpack", "attention_inputs"),
    ),
    "last-rows": (small_spec(**BLOCKS), Geometry.of(chunk_last_rows=1), ("gather_rows_256", "logits_of_chosen")),
    "one-weight-for-mlx": (
        small_spec(
            **BLOCKS,
            activation_dtype="bf16",
            weights={"default": "bf16", "tensors": {"layers.0.mlp.down": "q4_k"}},
        ),
        Geometry.of(mlx_quantised_min_rows=32),
        ("down_unpack",),
    ),
    **MMA_VARIANTS,
    **{
        f"format-{name}": (
            small_spec(**BLOCKS, weights={"default": name, "norm": "f32"}),
            Geometry(),
            ("embed", "down"),
        )
        for name in _FORMATS
    },
    "epilogues": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=1,
            model__norm={"kind": "layer", "bias": True},
            model__mlp={"intermediate_size": 40, "activation": "swiglu_oai", "limit": 7.0, "bias": True},
            model__embedding_scale=2.0,
            model__residual_scale=0.5,
            model__logit_scale=0.25,
            model__logit_softcap=30.0,
        ),
        Geometry(),
        ("embed", "qkv", "qkv_rows", "o", "gate_up", "logits"),
    ),
    "few-threadgroups": (
        small_spec(
            **BLOCKS
            | {
                "model__mlp": {
                    "intermediate_size": 256,
                    "experts": EXPERTS | {"router": "softmax_topk", "shared": {"intermediate_size": 512, "gate": True}},
                }
            },
            weights={"default": "q4_k", "tensors": {"*.v": "q6_k"}},
            activation_dtype="bf16",
            model__tensor_names="canonical",
        ),
        Geometry.of(matvec_outputs=2, matvec_simdgroups=4, matvec_split=2, matvec_threadgroups=8, experts_min_rows=0),
        ("qkv", "routed_experts_shared", "experts_down_shared"),
    ),
    "experts": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=1,
            model__mlp={
                "intermediate_size": 64,
                "bias": True,
                "experts": EXPERTS | {"router": "topk_softmax", "shared": {"intermediate_size": 40, "gate": True}},
            },
        ),
        Geometry(),
        (
            *("experts", "experts_down", "down_rows", "experts_down_shared"),
            *("routed_experts_shared", "routed_experts_shared_rows", "experts_down_shared_rows"),
        ),
    ),
    "latent-split-bf16": (
        small_spec(
            **FAMILY_SPECS["latent"],
            model__num_layers=1,
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry.of(partition=16),
        (
            *("latent_write", "latent_queries", "head_product", "latent_decode"),
            *("attend_latent_part", "attend_latent_prefill", "latent_reduce"),
        ),
    ),
    "latent-q8": (
        small_spec(**FAMILY_SPECS["latent-one-projection"], model__num_layers=1, cache={"dtype": "q8"}),
        Geometry(),
        ("latent_write", "latent_decode"),
    ),
    "kept-for-guesses-bf16": (
        small_spec(
            model__mtp={},
            model__tensor_names="canonical",
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry(),
        ("hidden_write",),
    ),
    "head-bf16": (
        small_spec(
            model__mtp={},
            model__tensor_names="canonical",
            output="guesses",
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry(),
        ("guess_write", "guess_write_each", "guess_input"),
    ),
    "kept-for-eagle-bf16": (
        small_spec(
            model__eagle=_EAGLE,
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry(),
        ("join_columns", "hidden_write"),
    ),
    "eagle-bf16": (
        small_spec(
            model__eagle=_EAGLE | {"norm_residual": True},
            output="guesses",
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry(),
        ("guess_write", "guess_write_each", "guess_input"),
    ),
    "short-conv-bf16": (
        small_spec(
            **FAMILY_SPECS["short-conv"],
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry(),
        ("gated_conv", "gated_conv_tiles"),
    ),
    "ssm-bf16": (
        small_spec(
            **FAMILY_SPECS["ssm"],
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry(),
        ("conv_ssd", "ssd"),
    ),
    "mixers-bf16": (
        small_spec(
            **FAMILY_SPECS["ssm-beside-attention"],
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry.of(partition=16, attend_simdgroups=4),
        ("attend_partition_scan",),
    ),
    "delta-bf16": (
        small_spec(
            **FAMILY_SPECS["delta"],
            weights={"default": "bf16"},
            **FOUR,
        ),
        Geometry(),
        ("delta_decode", "gated_delta", "gated_norm"),
    ),
    "delta-products": (
        small_spec(
            **FAMILY_SPECS["delta-products"],
            weights={"default": "bf16", "tensors": {"layers.*.recurrent.decay_b": "q8_0"}},
            model__recurrent__rank=32,
            **FOUR,
        ),
        Geometry(),
        ("delta_decode", "latent_write"),
    ),
}


@functools.cache
def variant(name: str) -> Artifact:
    """A variant compiled for Metal; of a split model, that of rank 0."""
    spec, geometry, _ = VARIANTS[name]
    artifact = compile_spec(spec, geometry, ("metal",)).artifact
    return artifact.of_rank(0) if spec.parallel is not None else artifact


def kernels_of(name: str) -> list[str]:
    """Labels of the kernels that a variant is about."""
    labels = VARIANTS[name][2]
    present = [k.label for k in variant(name).plan.first.kernels if not labels or k.label in labels]
    assert set(labels) <= set(present), f"{name} has no {set(labels) - set(present)}"
    return present
