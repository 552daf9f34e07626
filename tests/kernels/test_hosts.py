"""Whole steps: the plan on `sim` against the unfused graph on `reference`, logits and arena, every form of batch."""

import os

import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.few import few
from mlxr_tests.host_pair import HostPair
from mlxr_tests.schedules import SCHEDULES, SHORT_SCHEDULES
from mlxr_tests.specs import compiled, small_spec

pytestmark = pytest.mark.usefixtures("kernel_host")

SPLIT = Geometry.of(partition=16)
PAGED = {"dtype": "f32", "block_size": 4, "max_sequences": 4, "mode": "paged"}
SPECS = {
    "f32": (small_spec(cache=PAGED), SPLIT),
    "f16-layer": (
        small_spec(
            cache=PAGED | {"dtype": "f16", "layout": "layer", "block_size": 1},
            activation_dtype="f16",
            weights={"default": "f16"},
            model__attention={"num_heads": 8, "num_kv_heads": 1, "head_dim": 64, "sliding_window": 7, "qkv_bias": True},
            model__mlp={"intermediate_size": 136, "activation": "gelu", "bias": True},
        ),
        SPLIT,
    ),
    "bf16-tied": (
        small_spec(
            cache=PAGED | {"dtype": "bf16", "block_size": 16},
            activation_dtype="bf16",
            weights={"default": "bf16"},
            model__tie_embeddings=True,
            model__hidden_size=72,
            model__attention={"num_heads": 4, "num_kv_heads": 4, "head_dim": 80},
            model__rope={"layout": "interleaved", "fraction": 0.5},
        ),
        Geometry.of(partition=32),
    ),
    "mixed-types": (
        small_spec(
            cache=PAGED | {"dtype": "bf16"},
            activation_dtype="f32",
            weights={"default": "bf16", "mlp": "f16", "embedding": "f16", "norm": "bf16"},
            model__num_layers=3,
            model__attention={"num_heads": 7, "num_kv_heads": 1, "head_dim": 48, "output_bias": True},
        ),
        SPLIT,
    ),
    "contiguous": (small_spec(cache={"dtype": "f32", "mode": "contiguous", "block_size": 16}), SPLIT),
    "q8-layer": (
        small_spec(
            cache=PAGED | {"dtype": "q8", "layout": "layer"},
            model__attention={"num_heads": 8, "num_kv_heads": 1, "head_dim": 64, "sliding_window": 7},
        ),
        SPLIT,
    ),
    "q8-contiguous": (
        small_spec(
            cache={"dtype": "q8", "mode": "contiguous", "block_size": 1},
            activation_dtype="bf16",
            model__attention={"num_heads": 4, "num_kv_heads": 4, "head_dim": 40},
        ),
        SPLIT,
    ),
    "q8-everything": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=3,
            model__norm={"placement": "sandwich"},
            model__attention={
                "num_heads": 6,
                "num_kv_heads": 2,
                "head_dim": 48,
                "softcap": 4.0,
                "sinks": True,
                "qk_norm": {"scope": "head"},
            },
            model__layer_types={
                "sliding": {"attention": {"sliding_window": 9}, "rope": {"theta": 700.0}},
                "full": {"rope": {"scaling": {"kind": "yarn", "factor": 4.0, "original_context": 16}}},
                "unturned": {"rope": None},
            },
            model__layer_pattern=["sliding", "full", "unturned"],
            cache=PAGED | {"dtype": "q8", "block_size": 2},
        ),
        SPLIT,
    ),
    "q4-layers": (
        small_spec(
            model__tensor_names="canonical",
            model__num_layers=4,
            model__attention={"num_heads": 6, "num_kv_heads": 2, "head_dim": 64, "qk_norm": {"scope": "head"}},
            model__layer_types={
                "sliding": {"attention": {"sliding_window": 9}},
                "full": {"attention": {"head_dim": 96, "num_kv_heads": 3, "sinks": True}},
            },
            model__layer_pattern=["sliding", "full"],
            cache=PAGED | {"dtype": "q4", "block_size": 2, "layout": "layer"},
        ),
        SPLIT,
    ),
}


def artifact_of(name):
    spec, geometry = SPECS[name]
    if os.environ.get("MLXR_TEST_MLX") == "0":
        geometry = geometry.changed({"mlx_min_rows": 0})
    return compiled(spec, geometry)


@pytest.fixture(scope="module", params=few(SPECS, ["q8-everything"]))
def pair(kernel_host, request):
    return HostPair(artifact_of(request.param))


SHORT = [name for name in SHORT_SCHEDULES if name not in ("mixed-batches", "one-sequence", "random-0")]


@pytest.mark.parametrize("schedule", few(SCHEDULES, SHORT))
def test_schedules(pair, schedule):
    SCHEDULES[schedule](pair)


def test_the_reference_looks_at_weights_of_its_own(pair):
    """On a card MLX moves what the CPU looks at, while recorded steps keep the addresses of what they read."""
    of_host = {id(weight) for weight in pair.host.weights.values()}
    assert of_host and of_host.isdisjoint(map(id, pair.weights.values()))


@pytest.mark.parametrize(("setting", "takes"), [("", True), ("0", False)])
def test_mlx_takes_launches_unless_a_sanitizer_cannot_see_its_stores(monkeypatch, setting, takes):
    monkeypatch.setenv("MLXR_TEST_MLX", setting)
    assert (
        any(launch.yields for step in artifact_of("f16-layer").plan.first.phases for launch in step.launches) is takes
    )
