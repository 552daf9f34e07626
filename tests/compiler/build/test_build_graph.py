"""The source graph: one op per step of the mathematics, with the spec's dims, types and names."""

from collections import Counter

import pytest

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.verify import verify
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr.compiler.spec.family import load_family
from mlxr_tests.graphs import kinds, only, small_graph, source_graph
from mlxr_tests.specs import small_spec


@pytest.mark.parametrize("layers", [1, 3])
def test_ops(layers: int) -> None:
    graph = source_graph(small_spec(model__num_layers=layers))
    verify(graph, "source")
    assert Counter(kinds(graph)) == {
        "embed": 1,
        "norm": 2 * layers + 1,
        "linear": 7 * layers + 1,
        "rope": 2 * layers,
        "cache_write": layers,
        "attention": layers,
        "activation": layers,
        "multiply": layers,
        "add": 2 * layers,
        "gather_rows": 1,
    }
    assert graph.outputs == ("logits",)
    assert graph.value("logits").shape == ("rows", 61) and graph.value("logits").dtype == DType.F32


def test_inputs_are_the_batchs() -> None:
    inputs = {v.name: v.shape for v in small_graph().values if v.role == "input"}
    assert inputs == {
        "token_ids": ("tokens",),
        "positions": ("tokens",),
        "slots": ("tokens",),
        "query_start": ("seqs+1",),
        "context_lens": ("seqs",),
        "block_tables": ("seqs", 10),
        "logit_rows": ("rows",),
    }


@pytest.mark.parametrize("layout", ["block", "layer"])
def test_arena(layout: str) -> None:
    spec = small_spec(cache__layout=layout, cache__dtype="f16")
    for name in ("k_arena", "v_arena"):
        value = source_graph(spec).value(name)
        assert (value.role, value.shape, value.dtype) == (
            "store",
            arena_geometry(spec, GeometryTable()).cache_of(0).shape,
            DType.F16,
        )


def test_each_layer_has_its_own_place_in_the_arena() -> None:
    graph = source_graph(small_spec(model__num_layers=3))
    for kind in ("cache_write", "attention"):
        assert [op.layer for op in graph.ops if op.kind == kind] == [0, 1, 2]


def test_the_write_comes_before_the_attention() -> None:
    order = kinds(small_graph())
    assert order.index("cache_write") < order.index("attention")


def test_shapes_of_weights_and_types_by_class() -> None:
    formats = {"embedding": "f16", "attention": "bf16", "mlp": "f32", "output": "f16", "norm": "f32", "default": "bf16"}
    graph = small_graph(weights=formats, activation_dtype="bf16", model__attention__qkv_bias=True)
    weights = {v.name.removeprefix("layers.0."): (v.shape, str(v.dtype)) for v in graph.values if v.role == "weight"}
    assert weights == {
        "embedding": ((61, 48), "f16"),
        "attention.norm": ((48,), "f32"),
        "attention.q": ((240, 48), "bf16"),
        "attention.q_bias": ((240,), "bf16"),
        "attention.k": ((80, 48), "bf16"),
        "attention.k_bias": ((80,), "bf16"),
        "attention.v": ((80, 48), "bf16"),
        "attention.v_bias": ((80,), "bf16"),
        "attention.o": ((48, 240), "bf16"),
        "mlp.norm": ((48,), "f32"),
        "mlp.gate": ((88, 48), "f32"),
        "mlp.up": ((88, 48), "f32"),
        "mlp.down": ((48, 88), "f32"),
        "final_norm": ((48,), "f32"),
        "output": ((61, 48), "f16"),
    }
    assert {v.dtype for v in graph.values if v.role == "activation" and "logits" not in v.name} == {DType.BF16}


def test_every_weight_has_a_name_in_files() -> None:
    names = load_family("llama")
    biases = {"qkv_bias": True, "output_bias": True, "num_heads": 6, "num_kv_heads": 2, "head_dim": 40}
    graph = small_graph(model__attention=biases, model__mlp={"intermediate_size": 88, "bias": True})
    resolved = [names.resolve(v.name).safetensors for v in graph.values if v.role == "weight"]
    assert len(resolved) == len(set(resolved)) == 3 + 4 + 4 + 2 + 3 + 3


def test_tied_embeddings_are_one_weight() -> None:
    graph = small_graph(model__tie_embeddings=True)
    assert "output" not in graph
    assert graph.op("logits_of_all_tokens").inputs["weight"] == "embedding"
    assert [op.kind for op in graph.consumers("embedding")] == ["embed", "linear"]


def test_biases_where_the_spec_has_them() -> None:
    def biased(**changes: object) -> set[str]:
        graph = small_graph(**changes)
        return {op.name.rpartition(".")[2].partition("_")[0] for op in graph.ops if "bias" in op.inputs}

    assert biased() == set()
    assert biased(model__attention__qkv_bias=True) == {"q", "k", "v"}
    assert biased(model__attention__output_bias=True) == {"o"}
    assert biased(model__mlp__bias=True) == {"gate", "up", "down"}


def test_attributes_follow_the_spec() -> None:
    graph = small_graph(
        model__attention__sliding_window=7,
        model__rope={"fraction": 0.4, "layout": "interleaved", "theta": 100.0},
        model__norm={"eps": 0.125},
        model__mlp__activation="gelu_tanh",
    )
    attention = only(graph, "attention")
    assert (attention.attrs.window, attention.attrs.scale) == (7, 40**-0.5)
    assert {op.attrs.eps for op in graph.ops if op.kind == "norm"} == {0.125}
    assert only(graph, "activation").attrs.kind == "gelu_tanh"
    ropes = [op for op in graph.ops if op.kind == "rope"]
    assert [op.attrs.num_heads for op in ropes] == [6, 2]
    assert {(op.attrs.rotary_dim, op.attrs.rope_layout) for op in ropes} == {(16, "interleaved")}
    assert len(graph.value("rope_frequencies").data) == 8


def test_residuals_run_through_all_layers() -> None:
    graph = source_graph(small_spec())
    adds = [op for op in graph.ops if op.kind == "add"]
    assert [op.inputs["a"] for op in adds] == ["embedded", *(op.out for op in adds[:-1])]
    assert graph.op("normed").inputs["x"] == adds[-1].out
