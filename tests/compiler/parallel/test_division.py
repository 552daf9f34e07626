"""What op kinds become on the second of two ranks, and what they refuse to compute from."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import RuleError
from mlxr.compiler.ir.division import PARTIAL, WHOLE, Axis, Holding, split
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.attention import Attention
from mlxr.compiler.ir.ops.cache import CacheWrite
from mlxr.compiler.ir.ops.causal_conv import CausalConv
from mlxr.compiler.ir.ops.collectives import AllSum
from mlxr.compiler.ir.ops.delta_net import DeltaNet
from mlxr.compiler.ir.ops.elementwise import Add, Multiply, Scale
from mlxr.compiler.ir.ops.experts import ExpertLinear, ExpertSum, Route
from mlxr.compiler.ir.ops.gated_delta import GatedDelta
from mlxr.compiler.ir.ops.gated_norm import GatedNorm
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.ir.ops.mamba2 import Mamba2
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.rope import Rope
from mlxr.compiler.ir.ops.rows import Embed, GateRows
from mlxr.compiler.ir.tensor import Tensor
from mlxr.compiler.parallel.divide_model import divide_model
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr.compiler.spec.share import shares
from mlxr_tests.graphs import source_graph
from mlxr_tests.specs import small_spec

EXPERTS = {"count": 5, "per_token": 2, "router": "sigmoid", "normalise": True, "shared": {"intermediate_size": 48}}
SPEC = small_spec(parallel={"tensor": 2}, model__mlp={"intermediate_size": 56, "experts": EXPERTS})
FIRST, SECOND = shares(SPEC)  # 3 of 6 heads, 1 of 2 KV heads; the first has 2 of 5 experts
Q, K, OF_EXPERTS = Axis("heads", 6, 40), Axis("kv_heads", 2, 40), Axis("experts", 5, 56)
TABLE, RESULTS = Axis("vocabulary", 61), split(Axis("experts", 5))
ROPE = Rope(6, 40, 16, "half", 1.0)
NORM = Norm(6, 1.0, "rms", 0.1)
ATTENTION = Attention(6, 2, 40, 0.1, None, None)
ROUTE = Route(2, "sigmoid", True, 1.0)
LINEAR = Linear(DType.F32)
GATED = GatedNorm(6, 0.1, "silu", False, 0)
DELTA = GatedDelta(6, 2, 24, 40, False, False)
OF_DELTA = {"q": split(K), "k": split(K), "v": split(Q), "a": split(Q), "b": split(Q)}
OF_DELTA |= {"rate": Holding((Q,)), "dt_bias": Holding((Q,))}
NET, UNITS = DeltaNet(6, 2, 24, 40, False, False, taps=3), Axis("kv_heads", 2, 24)
OF_NET = dict.fromkeys(("q", "k", "v", "a", "b"), split(UNITS))
OF_NET |= dict.fromkeys(("q_conv", "k_conv", "v_conv", "rate", "dt_bias"), Holding((UNITS,)))
MAMBA2 = Mamba2(6, 40, 1, 16, 0.0, None, taps=4)
OF_MAMBA2 = {port: Holding((Axis("heads", 6),)) for port in ("a", "d", "dt_bias")}
OF_MAMBA2 |= {"x": split(Q), "dt": split(Axis("heads", 6)), "b": WHOLE, "c": WHOLE}
GROUPS = {port: split(Axis("heads", 6, 16)) for port in ("b", "c")}
CONV = CausalConv(3)
INPUTS = {"x": Tensor(("tokens", 5), DType.F32)}

Case = tuple[OpKind, dict[str, Holding], OpKind | None, Holding]
BECOMES: dict[str, Case] = {
    "rope": (ROPE, {"x": split(Q)}, replace(ROPE, num_heads=3), split(Q)),
    "rope of keys": (replace(ROPE, num_heads=2), {"x": split(K)}, replace(ROPE, num_heads=1), split(K)),
    "rope of all": (ROPE, {"x": WHOLE}, ROPE, WHOLE),
    "norm": (NORM, {"x": split(Q), "weight": Holding((Q,))}, replace(NORM, groups=3), split(Q)),
    "gated_delta": (DELTA, OF_DELTA, replace(DELTA, num_heads=3, num_key_heads=1), split(Q)),
    "delta_net": (NET, OF_NET, replace(NET, num_heads=3, num_key_heads=1), split(UNITS)),
    "gated_norm": (GATED, {"x": split(Q), "gate": split(Q)}, replace(GATED, groups=3), split(Q)),
    "mamba2": (MAMBA2, OF_MAMBA2, replace(MAMBA2, num_heads=3), split(Q)),
    "mamba2, groups": (
        replace(MAMBA2, num_groups=6),
        OF_MAMBA2 | GROUPS,
        replace(MAMBA2, num_heads=3, num_groups=3),
        split(Q),
    ),
    "causal_conv": (CONV, {"x": split(Q), "weight": Holding((Axis("heads", 6, 120),))}, CONV, split(Q)),
    "attention": (ATTENTION, {"q": split(Q)}, replace(ATTENTION, num_heads=3, num_kv_heads=1), split(Q)),
    "cache_write": (CacheWrite(2, 40), {"k": split(K), "v": split(K)}, CacheWrite(1, 40), WHOLE),
    "linear, by rows": (LINEAR, {"x": WHOLE, "weight": Holding((Q, None)), "bias": Holding((Q,))}, LINEAR, split(Q)),
    "linear, by columns": (LINEAR, {"x": split(Q), "weight": Holding((None, Q))}, LINEAR, PARTIAL),
    "linear, whole": (LINEAR, {"x": WHOLE, "weight": WHOLE, "bias": WHOLE}, LINEAR, WHOLE),
    "embed": (Embed(DType.F32, 1.0), {"table": Holding((TABLE, None))}, Embed(DType.F32, 1.0, 30), PARTIAL),
    "route": (ROUTE, {"x": WHOLE}, replace(ROUTE, first_expert=2, owned=3), WHOLE),
    "expert_linear": (
        ExpertLinear(5, 2, DType.F32),
        {"x": WHOLE, "weight": Holding((OF_EXPERTS, None)), "experts": WHOLE},
        ExpertLinear(3, 2, DType.F32),
        RESULTS,
    ),
    "expert_sum": (ExpertSum(2), {"x": RESULTS, "weights": WHOLE}, ExpertSum(2), PARTIAL),
    "gate of a sum": (GateRows(), {"x": PARTIAL, "gate": WHOLE}, GateRows(), PARTIAL),
    "sum of sums": (Add(0.5), {"a": PARTIAL, "b": PARTIAL}, Add(0.5), PARTIAL),
    "residual of the first rank": (Add(0.5), {"a": PARTIAL, "b": WHOLE}, None, PARTIAL),
    "addend of all": (Add(1.0), {"a": WHOLE, "b": PARTIAL}, None, PARTIAL),
    "scaled addend of all": (Add(0.5), {"a": WHOLE, "b": PARTIAL}, Scale(0.5), PARTIAL),
}


@pytest.mark.parametrize("case", BECOMES)
def test_what_the_second_rank_computes(case: str) -> None:
    kind, has, becomes, out = BECOMES[case]
    division = kind.divide(INPUTS, has, SECOND)
    assert (division.attrs, division.out) == (becomes, out)


def test_a_rank_has_the_slopes_of_its_own_heads() -> None:
    whole = replace(ATTENTION, alibi=8.0, alibi_heads=6)
    own = whole.divide(INPUTS, {"q": split(Q)}, SECOND).attrs
    assert own == replace(whole, num_heads=3, num_kv_heads=1, alibi_first=3) and whole.biases and own.biases
    assert own.biases.slopes(3) == whole.biases.slopes(6)[3:]


def test_the_first_rank_alone_adds_what_is_whole() -> None:
    has = {"x": split(Q), "weight": Holding((None, Q)), "bias": WHOLE}
    first, second = (LINEAR.divide(INPUTS, has, share).inputs for share in (FIRST, SECOND))
    assert first == {"x": "x", "weight": "weight", "bias": "bias"}
    assert second == {"x": "x", "weight": "weight"}
    addends = {"a": WHOLE, "b": PARTIAL}
    assert Add(0.5).divide(INPUTS, addends, FIRST).attrs == Add(0.5)
    assert Add(0.5).divide(INPUTS, addends, SECOND).inputs == {"x": "b"}


REFUSED: list[tuple[OpKind, Mapping[str, Holding], str]] = [
    (LINEAR, {"x": WHOLE, "weight": Holding((None, Q))}, "the whole of x, and some heads of 6"),
    (LINEAR, {"x": split(K), "weight": Holding((None, Q))}, "some kv_heads of 2 of x, and some heads of 6"),
    (LINEAR, {"x": WHOLE, "weight": Holding((Q, None)), "bias": WHOLE}, "a bias of other rows"),
    (replace(NORM, groups=1), {"x": split(Q), "weight": Holding((Q,))}, "normalises 6 heads together"),
    (NORM, {"x": split(Q), "weight": Holding((K,))}, "weight is of other columns"),
    (replace(DELTA, k_first=48), OF_DELTA, "a rank has parts of joined columns"),
    (DELTA, OF_DELTA | {"q": WHOLE}, "a rank has other heads of queries than of keys"),
    (DELTA, OF_DELTA | {"rate": WHOLE}, "a rank has the whole at rate"),
    (replace(DELTA, tiled=True), OF_DELTA, "heads of values that share keys with distant ones"),
    (replace(NET, tiled=True), OF_NET, "a rank has values in 1 tiles; expected 3"),
    (NET, OF_NET | {"v_conv": WHOLE}, "a rank has the whole at v_conv, and some kv_heads of 2 of values"),
    (GATED, {"x": split(Q), "gate": split(K)}, "gates of other heads than x"),
    (replace(GATED, groups=3), {"x": split(Q), "gate": split(Q)}, "columns 120 to 240, not whole groups of 80"),
    (GATED, {"x": split(Q), "gate": split(Q), "weight": Holding((K,))}, "weight is of other columns"),
    (replace(MAMBA2, num_groups=2), OF_MAMBA2, "a rank has all of 2 groups, and some heads"),
    (replace(MAMBA2, num_groups=2), OF_MAMBA2 | {"b": split(K)}, "a rank has groups of other heads than those of x"),
    (MAMBA2, OF_MAMBA2 | {"a": WHOLE}, "a rank has numbers of other heads than those of x"),
    (CONV, {"x": split(Q), "weight": Holding((K,))}, "filters of other channels than those of x"),
    (replace(CONV, first=8), {"x": split(Q), "weight": Holding((Q,))}, "parts of joined columns"),
    (CacheWrite(2, 40), {"k": split(K), "v": WHOLE}, "some kv_heads of 2 at k, and the whole at v"),
    (ATTENTION, {"q": split(Q), "sinks": WHOLE}, "sinks of other heads"),
    (Multiply(), {"a": split(Q), "b": WHOLE}, "some heads of 6 at a, and the whole at b"),
    (Add(1.0), {"a": split(Q), "b": PARTIAL}, "some heads of 6 of a, and a partial sum of b"),
    (ExpertLinear(5, 2, DType.F32), {"x": split(Q), "weight": Holding((OF_EXPERTS,))}, "some heads of 6 of x"),
    (AllSum(), {"x": WHOLE}, "that of a rank already"),
]


@pytest.mark.parametrize("case", REFUSED)
def test_what_kinds_refuse(case: tuple[OpKind, Mapping[str, Holding], str]) -> None:
    kind, has, message = case
    with pytest.raises(RuleError, match=message):
        kind.divide(INPUTS, has, SECOND)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("layers.0.attention.o", "op 'layers.0.attention.o_projected' .linear. cannot be divided"),
        ("layers.0.attention.v", "op 'layers.0.attention.cache_write' .cache_write. cannot be divided"),
        ("layers.1.mlp.shared.up", "op 'layers.1.mlp.shared.gated' .multiply. cannot be divided"),
        ("layers.1.mlp.experts.down", "op 'layers.1.mlp.experts.down_projected' .expert_linear. cannot be divided"),
    ],
)
def test_a_weight_that_does_not_say_what_its_axes_count(name: str, message: str) -> None:
    source, arena = source_graph(SPEC), arena_geometry(SPEC, GeometryTable())
    values = [replace(value, axes=()) if value.name == name else value for value in source.values]
    with pytest.raises(PlanError, match=message):
        divide_model(SPEC, OpGraph(values, source.ops, source.outputs), arena)
