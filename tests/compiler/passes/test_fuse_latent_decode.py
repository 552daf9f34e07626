"""fuse_latent_decode: write, queries, attention and products of latent attention become one op."""

import pytest

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.latent_decode import LatentDecode
from mlxr.compiler.passes.fuse_latent import FuseLatent
from mlxr.compiler.passes.fuse_latent_decode import FuseLatentDecode
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import check_same_numbers, check_silent, edited, fires, kinds, only, returning, source_graph

NAMES = ("latent", "latent-one-projection", "latent-tempered")
PREFIX = "layers.0.attention"


def joined(name: str) -> OpGraph:
    return fires(FuseLatent("decode"), source_graph(family_spec(name, model__num_layers=1)))


@pytest.mark.parametrize("name", NAMES)
def test_rule_1(name: str) -> None:
    spec = family_spec(name)
    source = source_graph(spec)
    fused = fires(FuseLatentDecode(), fires(FuseLatent("decode"), source))
    assert not {"latent_write", "latent_queries", "latent_attention", "head_product"} & set(kinds(fused))
    assert [op.layer for op in fused.ops if op.kind == "latent_decode"] == list(range(spec.model.num_layers))
    check_same_numbers(source, fused, spec, decode_only=True)


def test_attributes_and_inputs_are_kept() -> None:
    op = only(fires(FuseLatentDecode(), joined("latent-tempered")), "latent_decode")
    assert op.attrs == LatentDecode(
        num_heads=6,
        kv_rank=72,
        rope_dim=16,
        scale=0.3,
        temperature_beta=0.3,
        temperature_context=4,
        head_dim=40,
        first=56,
        rope_layout="half",
        rope_scale=1.0,
        eps=1e-5,
    )
    columns = {"q": f"{PREFIX}.q_b_projected", "kv": f"{PREFIX}.qkv_a_projected"}
    matrices = {port: f"{PREFIX}.{port}" for port in ("k_b", "v_b", "kv_norm")}
    assert {port: op.inputs[port] for port in columns | matrices} == columns | matrices


def test_both_inputs_are_columns_of_one_projection() -> None:
    op = only(fires(FuseLatentDecode(), joined("latent-one-projection")), "latent_decode")
    assert op.inputs["q"] == op.inputs["kv"] == f"{PREFIX}.qkv_a_projected"


@pytest.mark.parametrize("value", ["queries", "attended"])
def test_must_not_fire_when_something_else_reads_a_result(value: str) -> None:
    check_silent(FuseLatentDecode(), returning(joined("latent"), f"{PREFIX}.{value}"))


def test_must_not_fire_when_queries_and_rows_rotate_differently() -> None:
    source = source_graph(family_spec("latent", model__num_layers=1))
    graph = edited(source, f"{PREFIX}.queries", attrs={"rope_scale": 2.0})
    check_silent(FuseLatentDecode(), fires(FuseLatent("decode"), graph))


def test_must_not_fire_for_the_write_with_the_norm_of_queries() -> None:
    check_silent(FuseLatentDecode(), fires(FuseLatent("prefill"), source_graph(family_spec("latent"))))
