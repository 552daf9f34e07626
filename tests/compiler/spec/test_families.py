"""Properties of model families in a spec: read, resolved for each layer, written back, and refused where they clash."""

import re
from typing import Any

import pytest

from mlxr.compiler.errors import SpecError
from mlxr.compiler.spec import load
from mlxr.compiler.spec.load import dump_spec, parse_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.graphs import source_graph
from mlxr_tests.specs import small_spec

BASE = """\
name: tiny
model:
  vocab_size: 100
  hidden_size: 96
  num_layers: 5
  context: 64
  attention: {num_heads: 6, num_kv_heads: 2, head_dim: 32}
  mlp: {intermediate_size: 160}
"""
ATTENTION = "{num_heads: 6, num_kv_heads: 2, head_dim: 32}"
MLP = "{intermediate_size: 160}"
NEWLINE = "\n"
EXPERTS = "count: 4, per_token: 2, router: sigmoid"


def added(text: str) -> str:
    return f"{BASE}  {text}\n"


def with_attention(text: str) -> str:
    return BASE.replace(ATTENTION, f"{ATTENTION[:-1]}, {text}}}")


def with_mlp(text: str) -> str:
    return BASE.replace(MLP, f"{MLP[:-1]}, {text}}}")


@pytest.mark.parametrize("name", ALL_SPECS)
def test_reads_back_what_it_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = family_spec(name)
    text = dump_spec(spec)
    again = parse_spec(text, name)
    assert again == spec == parse_spec(text, name, is_dumped=True)
    monkeypatch.setattr(load, "_QuickDumper", load._Dumper)
    assert dump_spec(again) == text
    assert again.model.layers == spec.model.layers
    assert ModelSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("name", ["a" * 100, "a b " * 30, "pfui é 🙂", 'back\\slash\r"x"', "yes", " ", "", "- a: b"])
def test_odd_names_are_written_the_same_by_both_emitters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = small_spec().weights.model_copy(update={"tensors": {name: "f16"}})
    spec = small_spec().model_copy(update={"name": name, "weights": weights})
    text = dump_spec(spec)
    monkeypatch.setattr(load, "_QuickDumper", load._Dumper)
    assert dump_spec(spec) == text


def test_a_dumped_text_that_somebody_has_damaged_is_refused_in_the_usual_words() -> None:
    text = dump_spec(small_spec()).replace("vocab_size: 61", "vocab_size: 6 1: 2")
    with pytest.raises(SpecError) as usual:
        parse_spec(text, "spec.yaml")
    with pytest.raises(SpecError) as dumped:
        parse_spec(text, "spec.yaml", is_dumped=True)
    assert str(dumped.value) == str(usual.value)


@pytest.mark.parametrize("name", ALL_SPECS)
def test_matrix_shapes_are_those_of_the_graph(name: str) -> None:
    spec = family_spec(name)
    shapes = {v.name: v.shape for v in source_graph(spec).values if v.role == "weight" and len(v.shape) == 2}
    assert shapes == spec.matrix_shapes()


# the spec with ^ before what the message points at, text in it, fix (None: any)
MISTAKES: list[tuple[str, str, str | None]] = [
    # norms
    (added("norm: {kind: ^batch}"), 'norm.kind is "batch"; expected one of rms, layer', None),
    (added("norm: {bias: ^true}"), "a norm of kind rms has no bias", "kind to layer"),
    (added("norm: {placement: ^both}"), "expected one of pre, post, sandwich", None),
    (
        added("parallel_blocks: ^true\n  norm: {placement: post}"),
        "parallel blocks share the norm before them, but norm.placement is post",
        "norm.placement to pre",
    ),
    (with_attention("^qk_norm: {}"), "qk_norm.scope is missing; expected one of head, heads, all", None),
    (with_attention("qk_norm: ^true"), "qk_norm is true; expected a section with scope, bias", None),
    (
        with_attention("qk_norm: {scope: all, bias: ^true}"),
        "model.attention.qk_norm.bias: a norm of kind rms has no bias",
        "qk_norm.kind to layer",
    ),
    # scores
    (with_attention("softcap: ^0"), "softcap is 0; expected a number greater than 0", None),
    (with_attention("scale: ^-1.0"), "scale is -1.0; expected a number greater than 0", None),
    (with_attention("sinks: ^4"), "sinks is 4; expected true or false", None),
    # values
    (with_attention("v_dim: ^36"), "v_dim 36 is not a multiple of 8", "nearest are 32 and 40"),
    (with_attention("v_dim: ^24"), "v_dim is 24; expected at least 32", None),
    (
        with_attention("qk_norm: {scope: head}, values_from_keys: true, v_dim: ^40"),
        "values that are keys have head_dim 32, but v_dim is 40",
        "leave it out",
    ),
    (with_attention("output_bias: true, value_scale: ^0.7"), "a factor of values beside a bias", "leave one out"),
    (
        added("layer_types: {own: {}, other: {attention: {v_dim: 40, kv_from: ^own}}}\n  layer_pattern: [own, other]"),
        "layers of type own have 2 KV heads of 32 and 32, its own are 2 of 32 and 40",
        "give both types the same",
    ),
    # positions
    (with_attention("chunked: ^true"), "sliding_window, the tokens of a chunk, is null", "give sliding_window"),
    (
        with_attention("qk_norm: {scope: all, weight: ^false}"),
        "qk_norm.weight: norms with scope all have weights",
        "weight to true",
    ),
    (
        added("rope: {^scaling: {kind: yarn, factor: 4}}"),
        "rope.scaling.original_context is missing; expected a whole number",
        None,
    ),
    (
        added("rope: {scaling: {kind: yarn, factor: 4, original_context: 16, beta_fast: ^0.5}}"),
        "beta_fast 0.5 must be at least beta_slow, 1",
        "beta_fast 32",
    ),
    (
        added("rope: {scaling: {kind: longrope, original_context: 16, short_factors: ^[1, 2], long_factors: [1, 2]}}"),
        "model.rope.scaling.short_factors: 2 factors, but 16 pairs of a head are rotated",
        "give 16 numbers",
    ),
    (
        added("rope: {scaling: {kind: longrope, original_context: 16, short_factors: [1, ^x], long_factors: [1]}}"),
        'short_factors.1 is "x"; expected a number',
        None,
    ),
    # networks
    (with_mlp("activation: ^swish"), "expected one of silu, gelu, gelu_tanh, relu, relu2, swiglu_oai", None),
    (with_mlp("activation: swiglu_oai, gated: ^false"), "swiglu_oai multiplies a gate with `up`", "gated to tr"),
    (with_mlp("gated: false, limit: ^7.0"), "a gate and `up` have a limit, but gated is false", "remove it"),
    (
        with_mlp("experts: {count: 4, per_token: ^5, router: sigmoid}"),
        "per_token 5 is more than count 4",
        "use at most 4",
    ),
    (
        with_mlp("experts: {count: 4, per_token: 2, router: sigmoid, groups: {count: ^3, chosen: 1}}"),
        "count 4 is not a multiple of groups.count 3",
        None,
    ),
    (
        with_mlp("experts: {count: 4, per_token: 2, router: sigmoid, groups: {count: 2, chosen: ^3}}"),
        "groups.chosen 3 is more than groups.count 2",
        None,
    ),
    (
        with_mlp("experts: {count: 4, per_token: 1, router: sigmoid, groups: {count: 4, chosen: 2, judged_by: ^2}}"),
        "groups of 1 experts have no 2 best ones",
        None,
    ),
    (
        with_mlp("experts: {count: 8, per_token: 3, router: sigmoid, groups: {count: 4, chosen: ^1}}"),
        "1 groups of 2 experts are fewer experts than per_token 3",
        None,
    ),
    (with_mlp("^experts: {count: 4, per_token: 2}"), "experts.router is missing; expected one of", None),
    (with_mlp("experts: {count: ^2000, per_token: 2, router: sigmoid}"), "of at most 1024", None),
    (
        with_mlp(f"experts: {{{EXPERTS}, shared: {{intermediate_size: ^100}}}}"),
        "mlp.experts.shared.intermediate_size: intermediate_size 100 is not a multiple of 8",
        "nearest are 96 and 104",
    ),
    (with_mlp(f"experts: {{{EXPERTS}, ^top_k: 2}}"), "unknown key model.mlp.experts.top_k", "keys here are"),
    # scales
    (added("residual_scale: ^0"), "residual_scale is 0; expected a number greater than 0", None),
    (added("logit_softcap: ^.inf"), "logit_softcap is inf; expected a finite number", None),
    # layers
    (
        added("layer_types: {full: {}}\n  layer_pattern: [full, ^ful]"),
        'model.layer_pattern.1: "ful" is not a layer type; layer_types has full',
        "name one of layer_types",
    ),
    (added("layer_pattern: [^full]"), '"full" is not a layer type; layer_types is empty', "add full to it"),
    (
        added("layer_types: {full: {}, half: ^{}}\n  layer_pattern: [full]"),
        "layer_types.half: no layer is of this type",
        "name it in layer_pattern",
    ),
    (
        added("layer_types: {full: {attention: {num_kv_heads: ^4}}}\n  layer_pattern: [full]"),
        "num_heads 6 is not a multiple of num_kv_heads 4",
        "1, 2, 3, 6",
    ),
    (
        added("layer_types: {full: {mlp: {intermediate_size: ^12}}}\n  layer_pattern: [full]"),
        "model.layer_types.full.mlp.intermediate_size: intermediate_size 12 is not a multiple of 8",
        "nearest are 8 and 16",
    ),
    (
        added("layer_types: {full: {rope: {fraction: ^0.3}}}\n  layer_pattern: [full]"),
        "model.layer_types.full.rope.fraction: the rotary dim is head_dim 32 x fraction 0.3 = 9.6",
        None,
    ),
    (
        added("layer_types: {full: {attention: {^window: 4}}}\n  layer_pattern: [full]"),
        "unknown key model.layer_types.full.attention.window",
        'mean "sliding_window"',
    ),
    (added("layer_types: {full: {^norm: {}}}\n  layer_pattern: [full]"), "unknown key", "key of model"),
    (
        added("layer_types: {full: ^3}\n  layer_pattern: [full]"),
        "layer_types.full is 3; expected a section with attention, rope, mlp",
        None,
    ),
    (added("layer_types: ^[full]"), 'model.layer_types is ["full"]; expected a section', None),
    (
        added("rope: {scaling: {kind: longrope, original_context: 16, short_factors: [1], long_factors: ^[]}}"),
        "long_factors has 0 items; expected at least 1",
        None,
    ),
    (added("layer_pattern: ^full"), 'layer_pattern is "full"; expected a list', None),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[f"{m[1][:40]}-{n}" for n, m in enumerate(MISTAKES)])
def test_mistake(mistake: tuple[str, str, str | None]) -> None:
    marked, message, fix = mistake
    before, _, after = marked.partition("^")
    text, where = before + after, f"{before.count(NEWLINE) + 1}:{len(before.rpartition(NEWLINE)[2]) + 1}"
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "s")
    shown = str(caught.value)
    first = next((line for line in shown.splitlines() if message in line), shown)
    assert first.startswith(f"s:{where}: "), shown
    assert fix is None or any(fix in line for line in shown.splitlines() if line.startswith("  fix: ")), shown
    for jargon in ("Input should", "pydantic", "https://", "Traceback", "None"):
        assert jargon not in shown


def test_a_mistake_of_the_model_is_not_repeated_for_its_layer_types() -> None:
    text = added("layer_types: {a: {}, b: {rope: null}}\n  layer_pattern: [a, b]").replace("kv_heads: 2", "kv_heads: 4")
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "s")
    assert len(re.findall(r"(?m)^s:\d", str(caught.value))) == 1
    with pytest.raises(SpecError) as caught:
        parse_spec(text.replace("kv_heads: 4", "kv_heads: 2").replace("160", "156"), "s")
    assert len(re.findall(r"(?m)^s:\d", str(caught.value))) == 1


def test_layers_have_what_their_type_changes_and_the_models_own_else() -> None:
    spec = parse_spec(
        with_attention("softcap: 30.0, qk_norm: {scope: head, eps: 0.5}")
        + "  rope: {theta: 500.0, fraction: 0.5}\n"
        + "  layer_types:\n"
        + "    near: {attention: {sliding_window: 8, qk_norm: {scope: all}}, rope: {theta: 100.0}}\n"
        + f"    far: {{rope: null, mlp: {{experts: {{{EXPERTS}}}}}}}\n"
        + "  layer_pattern: [near, near, far]\n"
    )
    model = spec.model
    near, also_near, far, third, last = model.layers
    assert near == also_near == third == last != far
    assert near.attention.sliding_window == 8 and far.attention.sliding_window is None
    assert near.attention.softcap == far.attention.softcap == 30.0
    assert near.attention.qk_norm and (near.attention.qk_norm.scope, near.attention.qk_norm.eps) == ("all", None)
    assert far.attention.qk_norm == model.attention.qk_norm
    assert near.rope and (near.rope.theta, near.rope.fraction) == (100.0, 0.5)
    assert (near.rotary_dim, far.rotary_dim, model.rotary_dim) == (16, 0, 16)
    assert near.mlp == model.mlp and far.mlp.experts and far.mlp.intermediate_size == 160
    shapes = spec.matrix_shapes()
    assert shapes["layers.2.mlp.experts.gate"] == (4 * 160, 96) and shapes["layers.2.mlp.router"] == (4, 96)
    assert "layers.1.mlp.router" not in shapes and shapes["layers.3.mlp.gate"] == (160, 96)


def test_a_layer_type_may_rotate_where_the_model_does_not() -> None:
    types = {"rotated": {"rope": {"theta": 300.0}}, "plain": {}}
    model = small_spec(model__rope=None, model__layer_types=types, model__layer_pattern=["rotated", "plain"]).model
    assert [layer.rotary_dim for layer in model.layers] == [40, 0] and model.rotary_dim == 0
    rope = model.layer(0).rope
    assert rope and rope.theta == 300.0


@pytest.mark.parametrize(
    ("per_token", "chunk"), [(1, 2**31 // (2 * 8192)), (4, 2**31 // (8 * 8192)), (4, 2**31 // (2 * 8192))]
)
def test_the_widest_activation_counts_all_experts_of_a_token(per_token: int, chunk: int) -> None:
    experts = {"count": 4, "per_token": per_token, "router": "sigmoid"}
    changes: dict[str, Any] = {"model__mlp": {"intermediate_size": 8192, "experts": experts}}
    chunk = min(chunk, 65536)
    if chunk * 2 * 8192 * per_token < 2**31:
        assert small_spec(**changes, prefill_chunk=chunk - 1)
    else:
        with pytest.raises(ValueError, match="widest activation"):
            small_spec(**changes, prefill_chunk=chunk)


def test_the_matrix_of_all_experts_may_be_larger_than_one_matrix() -> None:
    experts = {"count": 256, "per_token": 8, "router": "sigmoid"}
    spec = small_spec(model__hidden_size=7168, model__mlp={"intermediate_size": 2048, "experts": experts})
    rows, columns = spec.matrix_shapes()["layers.0.mlp.experts.gate"]
    assert rows * columns > 2**31


def test_types_of_vectors() -> None:
    weights = small_spec(
        model__hidden_size=64, model__mlp={"intermediate_size": 96}, weights={"default": "bf16", "mlp": "q4_0"}
    ).weights
    prefix = "layers.0."
    kept = ("attention.norm_bias", "attention.sinks", "mlp.selection_bias", "mlp.post_norm", "attention.q_norm")
    assert {str(weights.of_vector(prefix + name)) for name in kept} == {"f32"}
    assert str(weights.of_vector(f"{prefix}attention.q_bias")) == "bf16"
    assert str(weights.of_vector(f"{prefix}mlp.experts.gate_bias")) == "f32", "as a bias of a quantised matrix is"
