"""The smallest spec of each variant of the kernels: what goldens and signature tests look at."""

import functools

from mlxr.compiler.artifact import Artifact, ModelSpec
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.plan.geometry import Geometry
from mlxr_tests.specs import small_spec

_ONE_LAYER = {"model__num_layers": 1, "model__attention": {"num_heads": 2, "num_kv_heads": 1, "head_dim": 32}}

VARIANTS: dict[str, tuple[ModelSpec, Geometry, tuple[str, ...]]] = {
    # name: spec, geometry, and the kernels that the variant is about (none: all)
    "contiguous-f32": (small_spec(**_ONE_LAYER, cache={"dtype": "f32", "mode": "contiguous"}), Geometry(), ()),
    "paged-bf16": (
        small_spec(
            **_ONE_LAYER,
            cache={"dtype": "bf16", "block_size": 16, "max_sequences": 2},
            activation_dtype="bf16",
            weights={"default": "bf16"},
        ),
        Geometry(),
        ("embed", "qkv", "qkv_rows", "rope_cache_write", "attend", "attend_prefill", "gate_up_rows", "logits"),
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
        Geometry(partition=16),
        ("attend", "attend_partition", "attend_reduce", "attend_prefill", "rope_cache_write", "copy_blocks"),
    ),
    "bias-gelu": (
        small_spec(
            model__num_layers=1,
            model__attention={
                "num_heads": 2,
                "num_kv_heads": 1,
                "head_dim": 32,
                "qkv_bias": True,
                "output_bias": True,
            },
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
}


@functools.cache
def variant(name: str) -> Artifact:
    """The artifact of a variant, as the compiler makes it."""
    spec, geometry, _ = VARIANTS[name]
    return compile_spec(spec, geometry).artifact


def kernels_of(name: str) -> list[str]:
    """Labels of the kernels that a variant is about."""
    labels = VARIANTS[name][2]
    return [k.label for k in variant(name).plan.kernels if not labels or k.label in labels]
