"""A small spec for every property in which model families differ, as changes to `small_spec`, by name.

Each has two layers or a whole pattern, unequal dims, and a GQA ratio of 3 unless it says otherwise.
"""

from typing import Any

from mlxr.compiler.artifact import ModelSpec
from mlxr_tests.specs import small_spec

_HEADS: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 40}
_LAYER_NORM = {"kind": "layer", "eps": 1e-5, "bias": True}
_EXPERTS: dict[str, Any] = {"count": 5, "per_token": 2, "router": "softmax_topk", "normalise": True}
_LONG = [1.0 + 0.25 * i for i in range(20)]
_SHORT = [1.0 + 0.0625 * i for i in range(20)]


def _attention(**changes: Any) -> dict[str, Any]:
    return {"model__attention": _HEADS | changes}


def _mlp(**changes: Any) -> dict[str, Any]:
    return {"model__mlp": {"intermediate_size": 88, **changes}}


def _experts(**changes: Any) -> dict[str, Any]:
    return {"model__mlp": {"intermediate_size": 56, "experts": _EXPERTS | changes}}


def _latent(q_rank: int | None = 56, eps: float | None = None, **changes: Any) -> dict[str, Any]:
    latent = {"kv_rank": 72, "q_rank": q_rank, "nope_dim": 24, "rope_dim": 16, "v_dim": 32, "eps": eps}
    attention = {"num_heads": 6, "num_kv_heads": 1, "head_dim": 40, "latent": latent}
    return {"model__attention": attention | changes, "model__tensor_names": "canonical"}


def _scaled(**scaling: Any) -> dict[str, Any]:
    return {"model__rope": {"theta": 5000.0, "scaling": scaling}}


FAMILY_SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    # norms
    "qk-norm-head": _attention(qk_norm={"scope": "head"}),
    "qk-norm-heads-layer-bias": _attention(qk_norm={"scope": "heads", "kind": "layer", "bias": True, "eps": 0.01}),
    "qk-norm-after-rope": _attention(qk_norm={"scope": "head", "after_rope": True}),
    "qk-norm-after-partial-rope": {
        "model__rope": {"fraction": 0.4, "layout": "interleaved"},
        **_attention(qk_norm={"scope": "heads", "after_rope": True}),
    },
    "qk-norm-all": _attention(qk_norm={"scope": "all"}, qkv_bias=True),
    "qk-norm-no-weight": _attention(qk_norm={"scope": "head", "weight": False, "eps": 0.01}),
    "layer-norm": {"model__norm": {"kind": "layer"}},
    "layer-norm-bias": {"model__norm": _LAYER_NORM, **_attention(qkv_bias=True, output_bias=True), **_mlp(bias=True)},
    "norm-without-weight": {"model__norm": {"weight": False}},
    "layer-norm-without-weight": {
        "model__norm": {"kind": "layer", "weight": False},
        **_experts(shared={"intermediate_size": 40}),
    },
    "post-norm": {"model__norm": {"placement": "post"}},
    "post-norm-layer-bias": {"model__norm": _LAYER_NORM | {"placement": "post"}},
    "sandwich-norm": {"model__norm": {"placement": "sandwich"}},
    "parallel": {"model__parallel_blocks": True},
    "parallel-layer-norm-bias": {"model__parallel_blocks": True, "model__norm": _LAYER_NORM},
    "parallel-two-norms": {"model__parallel_blocks": True, "model__parallel_norms": True, "model__norm": _LAYER_NORM},
    "output-bias": {"model__output_bias": True, "model__tie_embeddings": True},
    # positions
    "no-rope": {"model__rope": None},
    "some-layers-without-rope": {
        "model__num_layers": 3,
        "model__layer_types": {"rotated": {}, "plain": {"rope": None}},
        "model__layer_pattern": ["rotated", "plain"],
    },
    "alibi": {"model__rope": None, **_attention(alibi=8.0)},
    "embedding-norm": {"model__embedding_norm": True, "model__norm": _LAYER_NORM},
    "learned-positions": {"model__rope": None, "model__learned_positions": 150},
    "partial-interleaved-rope": {"model__rope": {"fraction": 0.4, "layout": "interleaved"}},
    "windows-and-ropes": {
        "model__num_layers": 4,
        "model__layer_types": {
            "sliding": {"attention": {"sliding_window": 5}, "rope": {"theta": 700.0}},
            "full": {"rope": {"scaling": {"kind": "linear", "factor": 8.0}}},
        },
        "model__layer_pattern": ["sliding", "sliding", "full"],
    },
    "chunks": _attention(sliding_window=6, chunked=True),
    "chunks-of-some-layers": {
        "model__num_layers": 3,
        "model__layer_types": {
            "chunked": {"attention": {"sliding_window": 5, "chunked": True, "temperature": None}},
            "full": {"rope": None},
        },
        "model__layer_pattern": ["chunked", "full"],
        **_attention(temperature={"beta": 0.3, "original_context": 4, "first_position": 1}),
    },
    "temperature": _attention(temperature={"beta": 0.3, "original_context": 4}),
    "rope-linear": _scaled(kind="linear", factor=4.0),
    "rope-base": _scaled(kind="base", factor=50.0),
    "rope-llama3": _scaled(kind="llama3", factor=8.0, original_context=16),
    "rope-yarn": _scaled(kind="yarn", factor=4.0, original_context=64),
    "rope-yarn-untruncated": _scaled(
        kind="yarn", factor=4.0, original_context=64, truncate=False, attention_factor=0.8
    ),
    "rope-longrope-long": _scaled(kind="longrope", short_factors=_SHORT, long_factors=_LONG, original_context=16),
    "rope-longrope-short": _scaled(
        kind="longrope", short_factors=_SHORT, long_factors=_LONG, original_context=64, attention_factor=1.19
    ),
    "heads-by-layer": {
        "model__num_layers": 4,
        "model__layer_types": {
            "local": {"attention": {"sliding_window": 5}},
            "whole": {
                "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 512, "scale": 0.05},
                "rope": {"theta": 700.0, "fraction": 0.25},
            },
        },
        "model__layer_pattern": ["local", "whole"],
    },
    "normed-values": _attention(qk_norm={"scope": "head", "values": True}),
    "values-from-keys": _attention(qk_norm={"scope": "heads", "after_rope": True}, values_from_keys=True),
    "shared-keys": {
        "model__num_layers": 6,
        "model__attention": _HEADS | {"qk_norm": {"scope": "head", "values": True}},
        "model__layer_types": {
            "local": {"attention": {"sliding_window": 5}},
            "whole": {
                "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "values_from_keys": True},
                "rope": {"theta": 700.0},
            },
            "after-local": {"attention": {"sliding_window": 7, "kv_from": "local"}, "rope": {"theta": 700.0}},
            "after-whole": {
                "attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "kv_from": "whole", "qk_norm": None}
            },
        },
        "model__layer_pattern": ["local", "whole", "local", "after-local", "after-whole", "after-whole"],
    },
    # latent attention
    "latent": _latent(),
    "latent-one-projection": {
        **_latent(q_rank=None, eps=0.01),
        "model__rope": {"layout": "interleaved", "scaling": {"kind": "yarn", "factor": 4.0, "original_context": 64}},
    },
    "latent-tempered": _latent(temperature={"beta": 0.3, "original_context": 4}, scale=0.3),
    # recurrent blocks
    "short-conv": {
        "model__num_layers": 3,
        "model__recurrent": {"kind": "conv", "channels": 64, "taps": 3},
        "model__layer_types": {"conv": {"blocks": ["recurrent", "mlp"]}, "full": {}},
        "model__layer_pattern": ["conv", "full"],
        "model__tensor_names": "canonical",
    },
    "short-conv-alone": {
        "model__recurrent": {"kind": "conv", "channels": 64, "taps": 4, "bias": True, "conv_bias": True},
        "model__blocks": ["recurrent", "mlp"],
        "model__tensor_names": "canonical",
    },
    "ssm": {
        "model__num_layers": 3,
        "model__recurrent": {"kind": "ssm", "num_heads": 6, "head_dim": 24, "num_groups": 3, "state_dim": 20},
        "model__layer_types": {"ssm": {"blocks": ["recurrent"]}, "full": {}},
        "model__layer_pattern": ["ssm", "full"],
        "model__tensor_names": "canonical",
    },
    "ssm-beside-attention": {
        "model__recurrent": {
            **{"kind": "ssm", "num_heads": 8, "head_dim": 12, "num_groups": 1, "state_dim": 40, "taps": 3},
            **{"norm": False, "bias": True, "conv_bias": False, "output_bias": True},
            **{"least_step": 0.01, "most_step": 0.9},
        },
        "model__attention__qkv_bias": True,
        "model__blocks": ["attention", "recurrent", "mlp"],
        "model__tensor_names": "canonical",
    },
    "ssm-norm-before-gate": {
        "model__recurrent": {
            **{"kind": "ssm", "num_heads": 6, "head_dim": 40, "num_groups": 3, "state_dim": 16},
            "norm_before_gate": True,
        },
        "model__blocks": ["recurrent", "mlp"],
        "model__tensor_names": "canonical",
    },
    "delta": {
        "model__recurrent": {
            **{"kind": "delta", "num_heads": 4, "num_key_heads": 2, "key_dim": 24, "value_dim": 40, "taps": 3},
        },
        "model__layer_types": {"delta": {"blocks": ["recurrent", "mlp"]}, "full": {}},
        "model__layer_pattern": ["full", "delta"],
        "model__tensor_names": "canonical",
    },
    # decays by channels, which two projections make, as the gate; and latents without positions
    "delta-products": {
        **_latent(q_rank=None),
        "model__rope": None,
        "model__recurrent": {
            **{"kind": "delta", "num_heads": 8, "num_key_heads": 8, "key_dim": 24, "value_dim": 40, "taps": 3},
            **{"channel_decays": True, "rank": 16, "gate": "sigmoid"},
        },
        "model__layer_types": {"delta": {"blocks": ["recurrent", "mlp"]}, "full": {}},
        "model__layer_pattern": ["full", "delta"],
    },
    "shared-keys-gate": {
        "model__num_layers": 4,
        **_attention(output_gate={"scope": "head", "activation": "softplus"}),
        "model__layer_types": {
            "own": {"attention": {"sliding_window": 5}},
            "others": {"attention": {"kv_from": "own"}},
        },
        "model__layer_pattern": ["own", "others"],
    },
    # values of another size than keys
    "long-values": _attention(v_dim=64, qkv_bias=True, output_bias=True),
    "short-values": _attention(v_dim=32, value_scale=0.7, sliding_window=6),
    "long-values-qk-norm": _attention(v_dim=72, qk_norm={"scope": "head", "values": True}),
    "long-values-qk-norm-all": _attention(v_dim=64, qk_norm={"scope": "all"}),
    "short-values-qk-norm-gate": _attention(
        v_dim=32, qk_norm={"scope": "heads", "after_rope": True}, output_gate={"scope": "element"}
    ),
    "values-by-layer": {
        "model__num_layers": 4,
        "model__layer_types": {
            "local": {
                "attention": {"sliding_window": 5, "num_kv_heads": 6, "sinks": True},
                "rope": {"theta": 700.0},
            },
            "whole": {"attention": {"v_dim": 32}},
        },
        "model__layer_pattern": ["local", "whole"],
        "model__rope": {"fraction": 0.4},
        **_attention(v_dim=64, value_scale=0.7),
    },
    "shared-long-values": {
        "model__num_layers": 4,
        **_attention(v_dim=64, output_gate={"scope": "element"}),
        "model__layer_types": {
            "own": {"attention": {"sliding_window": 5}},
            "others": {"attention": {"kv_from": "own"}},
        },
        "model__layer_pattern": ["own", "others", "own", "others"],
    },
    "proportional-rope": {"model__rope": {"theta": 700.0, "turned": 0.3}},
    # scores and scales
    "clamped-projections": _attention(qkv_limit=0.4, qkv_bias=True, qk_norm={"scope": "head"}),
    "soft-caps": {**_attention(softcap=2.0), "model__logit_softcap": 1.5},
    "sinks": _attention(sinks=True, sliding_window=6),
    "head-gate": _attention(output_gate={"scope": "head"}, qk_norm={"scope": "head"}),
    "head-gate-softplus": {
        "model__attention": {
            "num_heads": 8,
            "num_kv_heads": 2,
            "head_dim": 40,
            "output_gate": {"scope": "head", "activation": "softplus"},
            "qk_norm": {"scope": "all"},
        }
    },
    "element-gate": _attention(output_gate={"scope": "element"}, sinks=True, sliding_window=6),
    "element-gate-qk-norm": _attention(
        output_gate={"scope": "element", "activation": "softplus"}, qk_norm={"scope": "head"}, qkv_bias=True
    ),
    "attention-scale": _attention(scale=0.3),
    "scales": {"model__embedding_scale": 6.9, "model__residual_scale": 0.22, "model__logit_scale": 0.125},
    "scales-post-norm": {"model__norm": {"placement": "post"}, "model__residual_scale": 0.6},
    "tied": {"model__tie_embeddings": True, "model__logit_scale": 0.5},
    "layer-scale": {"model__norm": {"placement": "sandwich"}, "model__layer_scale": True},
    "layer-vectors": {
        "model__norm": {"placement": "sandwich"},
        "model__layer_embeddings": {"width": 24, "table_scale": 3.0, "projection_scale": 0.14, "scale": 0.7},
        "model__layer_scale": True,
    },
    # networks
    "relu2": _mlp(activation="relu2", gated=False),
    "gelu-tanh-bias": _mlp(activation="gelu_tanh", gated=False, bias=True),
    "gelu": _mlp(activation="gelu"),
    "relu": _mlp(activation="relu"),
    "xielu": _mlp(activation="xielu", gated=False, bias=True),
    "clamped-gate": _mlp(limit=0.3),
    "experts-clamped": {
        "model__num_layers": 4,
        **_experts(router="sigmoid", shared={"intermediate_size": 40}),
        "model__layer_types": {
            "dense": {"mlp": {"intermediate_size": 104, "limit": 0.4, "experts": None}},
            "both": {"mlp": {"limit": 0.3, "shared_limit": 0.5}},
            "shared": {"mlp": {"shared_limit": 0.5}},
            "chosen": {"mlp": {"limit": 0.3, "shared_limit": 0.0}},
        },
        "model__layer_pattern": ["dense", "both", "shared", "chosen"],
    },
    "swiglu-oai": _mlp(activation="swiglu_oai", limit=0.7, bias=True),
    # mixtures of experts
    "experts-softmax-topk": _experts(normalise=False),
    "experts-normalised": _experts(),
    "experts-topk-softmax-bias": {
        "model__mlp": {
            "intermediate_size": 56,
            "activation": "swiglu_oai",
            "limit": 7.0,
            "bias": True,
            "experts": _EXPERTS | {"router": "topk_softmax", "router_bias": True, "normalise": False},
        },
        **_attention(sinks=True, qkv_bias=True, output_bias=True),
    },
    "experts-sigmoid": _experts(count=8, per_token=3, router="sigmoid", selection_bias=True, scale=2.5),
    "experts-selection-bias": _experts(selection_bias=True, normalise=False),
    "experts-groups": _experts(
        count=12, per_token=3, groups={"count": 4, "chosen": 2, "judged_by": 1}, router="softmax_topk"
    ),
    "experts-one": _experts(per_token=1, router="sigmoid", normalise=False),
    "experts-weighed-inputs": _experts(router="sigmoid", weigh="inputs", normalise=False, scale=3.0),
    "experts-weighed-inputs-bias": {
        "model__mlp": {
            "intermediate_size": 56,
            "activation": "swiglu_oai",
            "limit": 7.0,
            "bias": True,
            "experts": _EXPERTS | {"weigh": "inputs", "shared": {"intermediate_size": 40}},
        },
    },
    "experts-shared": _experts(shared={"intermediate_size": 40}),
    "experts-shared-gate": _experts(shared={"intermediate_size": 40, "gate": True}),
    "experts-not-gated": {
        "model__mlp": {"intermediate_size": 56, "activation": "relu2", "gated": False, "experts": _EXPERTS}
    },
    "experts-sandwich-shared": {"model__norm": {"placement": "sandwich"}, **_experts(shared={"intermediate_size": 40})},
    "experts-own-norms": {
        "model__norm": {"placement": "sandwich"},
        "model__layer_scale": True,
        **_experts(
            shared={"intermediate_size": 40}, own_norms=True, router_norm=True, router_scale=0.14, weight_scales=True
        ),
    },
    "experts-layer-norm-bias": {"model__norm": _LAYER_NORM, **_experts()},
    "experts-scaled-residual": {"model__residual_scale": 0.3, **_experts(shared={"intermediate_size": 40})},
    "dense-then-experts": {
        "model__num_layers": 3,
        **_experts(router="sigmoid", selection_bias=True, shared={"intermediate_size": 56}),
        "model__layer_types": {"dense": {"mlp": {"intermediate_size": 104, "experts": None}}, "sparse": {}},
        "model__layer_pattern": ["dense", "sparse", "sparse"],
    },
}
"""Every property by itself, and combinations that occur in real families or in one kernel."""

NEIGHBOURS: dict[str, dict[str, Any]] = {
    "gemma-like": {
        "model__num_layers": 4,
        "model__norm": {"placement": "sandwich", "eps": 1e-6},
        "model__attention": {
            "num_heads": 4,
            "num_kv_heads": 1,
            "head_dim": 32,
            "scale": 0.2,
            "softcap": 5.0,
            "qk_norm": {"scope": "head"},
        },
        "model__mlp": {"intermediate_size": 88, "activation": "gelu_tanh"},
        "model__layer_types": {"sliding": {"attention": {"sliding_window": 7}}, "full": {"rope": {"theta": 1e6}}},
        "model__layer_pattern": ["sliding", "sliding", "full"],
        "model__tie_embeddings": True,
        "model__embedding_scale": 48**0.5,
        "model__logit_softcap": 3.0,
    },
    "cohere-like": {
        "model__norm": {"kind": "layer"},
        "model__parallel_blocks": True,
        "model__rope": {"layout": "interleaved"},
        "model__attention": {"num_heads": 8, "num_kv_heads": 8, "head_dim": 32, "qk_norm": {"scope": "heads"}},
        "model__logit_scale": 0.0625,
        "model__tie_embeddings": True,
    },
    "olmo-like": {
        "model__norm": {"placement": "post"},
        "model__attention": {"num_heads": 8, "num_kv_heads": 1, "head_dim": 32, "qk_norm": {"scope": "all"}},
    },
    "gpt-oss-like": {
        "model__num_layers": 4,
        "model__rope": {
            "theta": 150000.0,
            "scaling": {"kind": "yarn", "factor": 32.0, "original_context": 16, "truncate": False},
        },
        "model__attention": _HEADS | {"sinks": True, "qkv_bias": True, "output_bias": True},
        "model__mlp": {
            "intermediate_size": 56,
            "activation": "swiglu_oai",
            "limit": 7.0,
            "bias": True,
            "experts": {"count": 6, "per_token": 2, "router": "topk_softmax", "router_bias": True},
        },
        "model__layer_types": {"sliding": {"attention": {"sliding_window": 9}}, "full": {}},
        "model__layer_pattern": ["sliding", "full"],
    },
    "deepseek-like": {
        "model__num_layers": 3,
        "model__mlp": {
            "intermediate_size": 56,
            "experts": {
                "count": 8,
                "per_token": 3,
                "router": "sigmoid",
                "selection_bias": True,
                "groups": {"count": 4, "chosen": 2},
                "normalise": True,
                "scale": 2.5,
                "shared": {"intermediate_size": 56},
            },
        },
        "model__attention": _HEADS | {"qk_norm": {"scope": "head"}},
        "model__rope": {"fraction": 0.5},
        "model__layer_types": {"dense": {"mlp": {"intermediate_size": 104, "experts": None}}, "sparse": {}},
        "model__layer_pattern": ["dense", "sparse", "sparse"],
    },
}
"""Several properties at once, as families combine them."""

ALL_SPECS = FAMILY_SPECS | NEIGHBOURS
SHORT_SPECS = [
    *NEIGHBOURS,
    *("layer-norm-bias", "scales", "experts-shared-gate", "qk-norm-heads-layer-bias", "experts-not-gated"),
    *("temperature", "post-norm-layer-bias", "relu2", "rope-longrope-long", "experts-scaled-residual"),
]
"""The specs whose whole steps `make test` runs: families, and properties that no family has; some of them also on
cpu and on sim."""


def family_spec(name: str, **changes: Any) -> ModelSpec:
    """The small spec of that name, with further changes."""
    return small_spec(**{"model__tensor_names": "canonical", **ALL_SPECS[name], **changes})
