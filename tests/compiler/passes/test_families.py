"""Every property of model families: the whole pipeline keeps the numbers, and leaves the launches it should."""

import itertools

import numpy as np
import pytest

from mlxr.compiler.artifact import OpGraph
from mlxr.compiler.artifact.program import PHASES, PhaseName
from mlxr.compiler.passes.pipeline import passes_of, run_passes
from mlxr_tests.family_specs import ALL_SPECS, NEIGHBOURS, family_spec
from mlxr_tests.few import covering, few
from mlxr_tests.graphs import check_same_numbers, kinds, source_graph, trace

LAUNCHED = {"embed", "norm", "linear", "projection", "qk_norm", "expert_combine", "gated_norm", "gated_conv"}
LATENT = {"latent_write", "latent_norm_write", "latent_queries", "latent_attention", "head_product"}
RECURRENT, RECURRENT_DECODE = {"causal_conv", "ssd", "gated_delta"}, {"conv_ssd", "mixer_decode", "delta_decode"}
OF_PHASE = {
    "decode": {"rope_write_attention", "rope_read_attention", "routed_projection", "latent_decode", "projection_sum"}
    | RECURRENT_DECODE,
    "prefill": {"rope_cache_write", "rope_attention", "route", "expert_projection", *LATENT, *RECURRENT},
}


def fused(name: str, phase: PhaseName) -> OpGraph:
    return run_passes(source_graph(family_spec(name)), passes_of(phase))[0]


PHASES_OF = list(itertools.product(ALL_SPECS, PHASES))
SHORT = [case for i, case in enumerate(covering(PHASES_OF, lambda case: case)) if i % 4 == 0 or case[0] in NEIGHBOURS]


@pytest.mark.parametrize(("name", "phase"), few(PHASES_OF, SHORT))
def test_all_passes_keep_the_numbers(name: str, phase: PhaseName) -> None:
    spec = family_spec(name)
    source = source_graph(spec)
    graph, _ = run_passes(source, passes_of(phase))
    assert set(kinds(graph)) <= LAUNCHED | OF_PHASE[phase]
    check_same_numbers(source, graph, spec, decode_only=phase == "decode")


def layer_launches(name: str, layer: int) -> list[str]:
    return [op.kind for op in fused(name, "decode").ops if op.name.startswith(f"layers.{layer}.")]


ATTEND, PROJECT, BOTH = "rope_write_attention", "projection", "projection_sum"
SPARSE = [PROJECT, "routed_projection", "expert_combine"]


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("plain", [PROJECT, ATTEND, PROJECT, PROJECT, PROJECT]),
        ("parallel", [PROJECT, ATTEND, PROJECT, BOTH]),
        ("relu2", [PROJECT, ATTEND, PROJECT, PROJECT, PROJECT]),
        ("latent", [PROJECT, PROJECT, "latent_decode", PROJECT, PROJECT, PROJECT]),
        ("latent-one-projection", [PROJECT, "latent_decode", PROJECT, PROJECT, PROJECT]),
        ("qk-norm-all", [PROJECT, "qk_norm", ATTEND, PROJECT, PROJECT, PROJECT]),
        ("sandwich-norm", [PROJECT, ATTEND, "linear", PROJECT, "linear"]),
        ("experts-normalised", [PROJECT, ATTEND, PROJECT, *SPARSE]),
        ("experts-shared", [PROJECT, ATTEND, PROJECT, *SPARSE]),
        ("experts-shared-gate", [PROJECT, ATTEND, PROJECT, *SPARSE]),
        ("experts-topk-softmax-bias", [PROJECT, ATTEND, PROJECT, *SPARSE]),
        ("experts-scaled-residual", [PROJECT, ATTEND, PROJECT, *SPARSE]),
        ("experts-own-norms", [PROJECT, ATTEND, "linear", *SPARSE]),
        ("experts-sandwich-shared", [PROJECT, ATTEND, "linear", *SPARSE]),
        ("ssm-beside-attention", [PROJECT, "mixer_decode", BOTH, PROJECT, PROJECT]),
        ("layer-vectors", [PROJECT, ATTEND, "linear", PROJECT, "linear", PROJECT, "linear"]),
    ],
)
def test_launches_of_a_decode_layer(name: str, launches: list[str]) -> None:
    for layer in range(2):
        assert sorted(layer_launches(name, layer)) == sorted(launches)


def test_a_first_layer_reads_the_embedding_as_it_is() -> None:
    later = [PROJECT, ATTEND, "linear", PROJECT, "linear"]
    assert [layer_launches("post-norm", layer) for layer in (0, 1)] == [["linear", *later[1:]], later]


def test_mixed_layers() -> None:
    assert len(layer_launches("dense-then-experts", 0)) == 5
    assert len(layer_launches("dense-then-experts", 1)) == 3 + 3
    assert len(layer_launches("deepseek-like", 1)) == 3 + 3
    assert layer_launches("ssm", 0) == [PROJECT, "conv_ssd", "norm", PROJECT]
    assert layer_launches("delta", 1) == [PROJECT, "delta_decode", *[PROJECT] * 3]
    assert layer_launches("shared-keys", 1) == [PROJECT, ATTEND, *[PROJECT] * 3]
    assert layer_launches("shared-keys", 3) == [PROJECT, "rope_read_attention", *[PROJECT] * 3]
    assert layer_launches("shared-keys", 4) == [PROJECT, "rope_read_attention", *[PROJECT] * 3]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in ALL_SPECS if name != "plain"])
def test_every_property_changes_the_numbers(name: str) -> None:
    """A property that the builder ignored would pass every test that compares graphs of the same spec."""
    changes = ALL_SPECS[name]
    plain = family_spec("plain", **{key: value for key, value in changes.items() if key == "model__num_layers"})
    logits = [
        trace(graph, graph, spec)["step 3 %logits"]
        for spec in (plain, family_spec(name))
        for graph in [source_graph(spec)]
    ]
    assert not np.allclose(*logits, rtol=1e-4, atol=1e-6)


def test_neighbours_differ_in_their_layers() -> None:
    windows = [op.attrs.window for op in fused("gemma-like", "decode").ops if op.kind == ATTEND]
    assert windows == [7, 7, None, 7]
    names = [op.inputs["frequencies"] for op in fused("gemma-like", "decode").ops if op.kind == ATTEND]
    assert names == ["rope_frequencies", "rope_frequencies", "rope_frequencies_1", "rope_frequencies"]
    assert set(NEIGHBOURS) <= set(ALL_SPECS)
