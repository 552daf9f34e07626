"""Small specs for target cpu: every weight format, cache and way to compute, as changes to `small_spec`."""

from typing import Any

PAGED: dict[str, Any] = {"dtype": "f32", "block_size": 4, "max_sequences": 4, "mode": "paged"}
EXACT: dict[str, Any] = {"cache": PAGED, "compute": "exact"}
# Unequal dims, rows of whole blocks and, if the format allows it, a number of rows that is not a multiple of 16.
BLOCKS: dict[str, Any] = {
    "model__hidden_size": 256,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 512},
}
SMALL_BLOCKS: dict[str, Any] = {
    "model__hidden_size": 96,
    "model__attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 40},
    "model__mlp": {"intermediate_size": 160},
}
MIXED = {"*.[kg]*": "bf16", "*.o": "f32", "embedding": "f16", "*.up": "q4_0"}
SPECS: dict[str, dict[str, Any]] = {
    "f32": EXACT,
    "f16-layer": EXACT
    | {
        "cache": PAGED | {"dtype": "f16", "layout": "layer", "block_size": 1},
        "weights": {"default": "f16"},
        "model__attention": {
            "num_heads": 8,
            "num_kv_heads": 1,
            "head_dim": 64,
            "sliding_window": 7,
            "qkv_bias": True,
            "output_bias": True,
        },
        "model__mlp": {"intermediate_size": 136, "activation": "gelu", "bias": True},
    },
    "bf16-tied": EXACT
    | {
        "cache": PAGED | {"dtype": "bf16", "block_size": 16},
        "weights": {"default": "bf16"},
        "model__tie_embeddings": True,
        "model__hidden_size": 72,
        "model__attention": {"num_heads": 4, "num_kv_heads": 4, "head_dim": 80},
        "model__rope": {"layout": "interleaved", "fraction": 0.5},
    },
    "mixed-floats": EXACT
    | {
        "weights": {
            "default": "bf16",
            "norm": "bf16",
            "tensors": {"layers.0.*.[kg]*": "f16", "layers.1.*.[vu]*": "f32"},
        },
        "model__attention": {"num_heads": 7, "num_kv_heads": 1, "head_dim": 48, "output_bias": True},
        "model__mlp": {"intermediate_size": 88, "activation": "gelu_tanh"},
    },
    "contiguous-q8": {"cache": {"dtype": "q8", "mode": "contiguous", "block_size": 16}, "compute": "exact"},
    "q4-cache": EXACT
    | {
        "cache": PAGED | {"dtype": "q4"},
        "model__attention": {"num_heads": 6, "num_kv_heads": 2, "head_dim": 64, "sliding_window": 9},
    },
    "q8_0": EXACT | SMALL_BLOCKS | {"weights": {"default": "q8_0"}},
    "q4_0-q8-cache": EXACT | SMALL_BLOCKS | {"weights": {"default": "q4_0"}, "cache": PAGED | {"dtype": "q8"}},
    "q4_k": EXACT | BLOCKS | {"weights": {"default": "q4_k"}},
    "q5_k": EXACT | BLOCKS | {"weights": {"default": "q5_k"}},
    "q6_k-tied": EXACT | BLOCKS | {"weights": {"default": "q6_k"}, "model__tie_embeddings": True},
    "q4_k_m": EXACT
    | BLOCKS
    | {
        "weights": {
            "default": "q4_k",
            "output": "q6_k",
            "tensors": {"*.attention.v": "q6_k", "layers.0.*.down": "q5_k"},
        },
        "model__attention": BLOCKS["model__attention"] | {"qkv_bias": True},
    },
    "floats-and-blocks": EXACT
    | BLOCKS
    | {
        "weights": {"default": "q8_0", "tensors": {"*.[kg]*": "bf16", "*.o": "f32", "embedding": "f16", "*.up": "q4_0"}}
    },
    **{name: EXACT | SMALL_BLOCKS | {"weights": {"default": name}} for name in ("q5_1", "iq4_nl", "mxfp4_mlx")},
    "q2_k": EXACT | BLOCKS | {"weights": {"default": "q2_k", "tensors": {"*.[ov]*": "q3_k", "*.up": "iq4_xs"}}},
    "affine": EXACT
    | BLOCKS
    | {
        "weights": {
            "default": "affine4_g64_bf16",
            "embedding": "affine6_g32_f16",
            "output": "affine8_g64_f32",
            "tensors": {"*.[vk]*": "affine3_g128_bf16", "*.up": "affine2_g64_f16", "*.down": "affine5_g64_f32"},
        }
    },
    "fast-q8_0": SMALL_BLOCKS | {"cache": PAGED, "weights": {"default": "q8_0"}},
    "fast-q4_0": SMALL_BLOCKS | {"cache": PAGED, "weights": {"default": "q4_0"}},
    "fast-q4_k_m": BLOCKS
    | {
        "cache": PAGED,
        "weights": {"default": "q4_k", "output": "q6_k", "tensors": {"*.attention.v": "q6_k", "*.down": "q5_k"}},
    },
    "fast-small-blocks": SMALL_BLOCKS
    | {
        "cache": PAGED,
        "weights": {
            "default": "q4_1",
            "embedding": "iq4_nl",
            "output": "mxfp4",
            "tensors": {"*.[vk]*": "q5_0", "*.up": "mxfp4_mlx", "*.down": "q5_1"},
        },
    },
    "fast-large-blocks": BLOCKS
    | {
        "cache": PAGED,
        "weights": {"default": "q3_k", "output": "iq4_xs", "tensors": {"*.attention.v": "q2_k", "*.down": "iq4_xs"}},
    },
    "fast-affine": BLOCKS
    | {
        "cache": PAGED,
        "weights": {
            "default": "affine4_g64_bf16",
            "embedding": "affine8_g32_f16",
            "output": "affine6_g64_bf16",
            "tensors": {"*.[vk]*": "affine3_g32_f16", "*.up": "affine5_g128_bf16", "*.down": "affine2_g64_f32"},
        },
    },
    "fast-bf16": {"cache": PAGED, "weights": {"default": "bf16"}},
    "fast-f16": {"cache": PAGED | {"dtype": "bf16"}, "weights": {"default": "f16"}},
}
