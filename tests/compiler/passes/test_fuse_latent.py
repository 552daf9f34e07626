"""fuse_latent: the first projections of latent attention are one, and the norm of queries joins what is beside it."""

import pytest

from mlxr.compiler.artifact.program import PHASES, PhaseName
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.passes.fuse_latent import FuseLatent
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import check_same_numbers, check_silent, edited, fires, kinds, only, returning, source_graph

PREFIX = "layers.0.attention"


def one_layer(name="latent", **changes):
    return source_graph(family_spec(name, model__num_layers=1, **changes))


def test_rule_1_prefill() -> None:
    spec = family_spec("latent")
    source = source_graph(spec)
    fused = fires(FuseLatent("prefill"), source)
    assert kinds(fused).count("latent_norm_write") == spec.model.num_layers and "latent_write" not in kinds(fused)
    check_same_numbers(source, fused, spec)


def test_rule_2_decode() -> None:
    spec = family_spec("latent", model__num_layers=1)
    source = source_graph(spec)
    fused = fires(FuseLatent("decode"), source)
    projection, write = only(fused, "projection"), only(fused, "latent_write")
    assert projection.attrs == Projection(source.value(f"{PREFIX}.q_b_projected").dtype, 1e-5, "rms", columns=56)
    assert projection.inputs["x"] == write.inputs["x"] == f"{PREFIX}.qkv_a_projected"
    assert projection.inputs["norm"] == f"{PREFIX}.q_norm"
    check_same_numbers(source, fused, spec, decode_only=True)


@pytest.mark.parametrize("phase", PHASES)
def test_rule_3(phase: PhaseName) -> None:
    spec = family_spec("latent-one-projection")
    source = source_graph(spec)
    fused = fires(FuseLatent(phase), source)
    assert fused.op(f"{PREFIX}.queries").inputs["x"] == f"{PREFIX}.qkv_a_projected"
    check_same_numbers(source, fused, spec, decode_only=phase == "decode")


def test_rule_4_only_prefill_has_tiles() -> None:
    tiles = {phase: "query_tiles" in fires(FuseLatent(phase), one_layer()) for phase in PHASES}
    assert tiles == {"decode": False, "prefill": True}


@pytest.mark.parametrize("value", ["q_a_projected", "kv_a_projected", "q_normed"])
def test_must_not_fire_in_decode_when_something_else_reads_a_result(value: str) -> None:
    check_silent(FuseLatent("decode"), returning(one_layer(), f"{PREFIX}.{value}"))


def test_only_prefill_needs_one_epsilon() -> None:
    graph = edited(one_layer(), f"{PREFIX}.q_normed", attrs={"eps": 0.5})
    assert "latent_norm_write" not in kinds(fires(FuseLatent("prefill"), graph))
    assert only(fires(FuseLatent("decode"), graph), "projection").attrs_as(Projection).eps == 0.5
