"""fuse_delta: the projections of a gated delta layer, its convolution, rule and gated norm."""

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.fuse_delta import FuseDelta
from mlxr_tests.delta_cases import delta_spec
from mlxr_tests.graphs import check_same_numbers, check_silent, fires, kinds, only, source_graph
from mlxr_tests.specs import small_spec

PREFIX = "layers.0.recurrent"
DECODE, PREFILL = FuseDelta("decode"), FuseDelta("prefill")
WIDTHS = {"q": 48, "k": 48, "v": 160, "z": 160, "decay": 4, "beta": 4}


def delta_graph(**changes) -> OpGraph:
    return source_graph(delta_spec(**changes))


def test_rules_1_and_3_join_all_of_it() -> None:
    source = delta_graph()
    fused = fires(DECODE, source)
    op = only(fused, "delta_decode")
    assert len(kinds(fused)) == len(kinds(source)) - 6
    a = op.attrs
    assert (a.q_first, a.k_first, a.v_first, a.gate_column, a.decay_first, a.beta_first) == (0, 48, 96, 256, 416, 420)
    projected = fused.producer(op.inputs["x"])
    assert projected is not None and projected.inputs["x"] == f"{PREFIX}.normed"
    assert op.inputs["a"] == op.inputs["b"] == op.inputs["gate"] == op.inputs["x"]
    weight = fused.value(projected.inputs["weight"])
    assert weight.parts == tuple(f"{PREFIX}.{part}" for part in WIDTHS) and weight.shape == (sum(WIDTHS.values()), 48)
    filters = fused.value(op.inputs["weight"])
    assert filters.parts == tuple(f"{PREFIX}.{part}_conv" for part in "qkv") and filters.shape == (256 * 3,)
    check_same_numbers(source, fused, delta_spec(), decode_only=True)


def test_rules_1_and_2_leave_convolution_rule_and_norm_apart() -> None:
    source = delta_graph(tiled=True)
    fused = fires(PREFILL, source)
    rule, conv, norm = only(fused, "gated_delta"), only(fused, "causal_conv"), only(fused, "gated_norm")
    assert rule.inputs["q"] == rule.inputs["k"] == rule.inputs["v"] == conv.out and rule.out == norm.inputs["x"]
    assert (rule.attrs.q_first, rule.attrs.k_first, rule.attrs.v_first, norm.attrs.first) == (0, 48, 96, 256)
    check_same_numbers(source, fused, delta_spec(tiled=True))


def test_numbers_of_heads_that_would_misalign_rows_keep_their_projections() -> None:
    spec = delta_spec(num_heads=3, num_key_heads=1)
    source = source_graph(spec)
    op = only(fires(DECODE, source), "delta_decode")
    assert op.inputs["gate"] == op.inputs["x"]
    assert (op.inputs["a"], op.inputs["b"]) == (f"{PREFIX}.decay_projected", f"{PREFIX}.beta_projected")
    check_same_numbers(source, fires(DECODE, source), spec, decode_only=True)


BY_RANK = {"num_heads": 4, "num_key_heads": 4, "channel_decays": True, "rank": 16, "gate": "sigmoid"}


def test_second_projections_are_parts_of_a_decode_step() -> None:
    spec = delta_spec(**BY_RANK)
    source = source_graph(spec)
    fused = fires(DECODE, source)
    op = only(fused, "delta_decode")
    assert len(kinds(fused)) == len(kinds(source)) - 7
    assert (op.attrs.rank, op.attrs.gate_column, op.attrs.decay_first, op.attrs.beta_first) == (16, 352, 368, 0)
    assert (op.inputs["decay_b"], op.inputs["gate_b"]) == (f"{PREFIX}.decay_b", f"{PREFIX}.z_b")
    # Four numbers of heads would misalign what is multiplied.
    assert op.inputs["a"] == op.inputs["gate"] == op.inputs["x"] and op.inputs["b"] == f"{PREFIX}.beta_projected"
    projected = fused.producer(op.inputs["x"])
    assert projected is not None
    weight = fused.value(projected.inputs["weight"])
    assert weight.parts == tuple(f"{PREFIX}.{part}" for part in ("q", "k", "v", "z_a", "decay_a"))
    check_same_numbers(source, fused, spec, decode_only=True)


def test_second_projections_read_columns_of_prompts() -> None:
    spec = delta_spec(**BY_RANK)
    source = source_graph(spec)
    fused = fires(PREFILL, source)
    rule, norm = only(fused, "gated_delta"), only(fused, "gated_norm")
    gate, decay = (fused.producer(name) for name in (norm.inputs["gate"], rule.inputs["a"]))
    assert gate is not None and decay is not None and gate.inputs["x"] == decay.inputs["x"]
    assert (gate.kind, gate.attrs.first, decay.attrs.first) == ("head_product", 352, 368)
    check_same_numbers(source, fused, spec)


def test_second_projections_of_other_widths_stay() -> None:
    """Of heads' decays, of which there are too few to multiply by heads."""
    spec = delta_spec(**BY_RANK | {"channel_decays": False})
    source = source_graph(spec)
    fused = fires(DECODE, source)
    op = only(fused, "delta_decode")
    assert op.attrs.rank == 0 and op.inputs["a"] == f"{PREFIX}.decay_b_projected"
    check_same_numbers(source, fused, spec, decode_only=True)


def test_other_layers_stay() -> None:
    check_silent(DECODE, source_graph(small_spec()))
