"""OpGraph: names, order, edges, rewriting, JSON, and dumps that depend on nothing but the graph."""

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from mlxr.compiler.artifact.program import PHASES, PhaseName
from mlxr.compiler.errors import GraphError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.ops.elementwise import Activation, Add
from mlxr.compiler.passes.pipeline import passes_of, run_passes
from mlxr_tests.graphs import kinds, small_graph, source_graph
from mlxr_tests.specs import small_spec


def value(name: str) -> Value:
    return Value(name, "activation", ("tokens", 8), DType.F32)


def copy(name: str, x: str, out: str) -> Op:
    return Op(name, Activation("silu"), {"x": x}, {"out": out})


def diamond() -> OpGraph:
    ops = [copy("left", "x", "a"), copy("right", "x", "b"), Op("sum", Add(1.0), {"a": "a", "b": "b"}, {"out": "y"})]
    return OpGraph([Value("x", "input", ("tokens", 8), DType.F32), *map(value, "aby")], ops, ["y"])


def test_edges() -> None:
    graph = diamond()
    assert [op.name for op in graph.consumers("x")] == ["left", "right"]
    assert graph.producer("x") is None and graph.producers("x") == []
    assert graph.producer("y") is graph.op("sum")
    assert graph.sole_consumer("a") is graph.op("sum")
    assert graph.sole_consumer("x") is None, "two consumers"
    assert graph.sole_consumer("y") is None, "no consumer"
    assert [graph.index(op.name) for op in graph.ops] == [0, 1, 2] and len(graph) == 3
    assert "a" in graph and "sum" not in graph


def test_a_returned_value_has_no_sole_consumer() -> None:
    assert diamond().rewrite({}, outputs=["y", "a"]).sole_consumer("a") is None


def test_an_op_that_reads_a_value_on_two_ports_is_one_consumer() -> None:
    twice = Op("sum", Add(1.0), {"a": "x", "b": "x"}, {"out": "y"})
    graph = OpGraph([value("x"), value("y")], [twice], ["y"])
    assert [op.name for op in graph.consumers("x")] == ["sum"]
    assert sorted(graph.nx.edges) == [("%x", "sum", "a"), ("%x", "sum", "b"), ("sum", "%y", "out")]


def test_value_declared_twice() -> None:
    with pytest.raises(GraphError, match="value 'x' is declared twice"):
        OpGraph([value("x"), value("x")], [], [])


def test_op_declared_twice() -> None:
    with pytest.raises(GraphError, match="op 'one' is declared twice"):
        OpGraph([value("x"), value("y")], [copy("one", "x", "y"), copy("one", "x", "y")], [])


@pytest.mark.parametrize(("x", "out", "port"), [("gone", "y", "x"), ("x", "gone", "out")])
def test_value_that_is_not_declared(x: str, out: str, port: str) -> None:
    with pytest.raises(GraphError, match=f"op 'one' port '{port}' binds 'gone', which is not declared"):
        OpGraph([value("x"), value("y")], [copy("one", x, out)], [])


def test_rewrite_replaces_in_place_and_drops_what_nothing_binds() -> None:
    graph = diamond()
    new = graph.rewrite({"right": [copy("first", "x", "c"), copy("second", "c", "b")], "left": []}, [value("c")])
    # `a` is still bound, by the sum.
    assert [op.name for op in new.ops] == ["first", "second", "sum"] and "a" in new
    new = graph.rewrite({"left": [], "right": [], "sum": []}, outputs=["x"])
    assert [v.name for v in new.values] == ["x"]
    assert new.outputs == ("x",) and len(graph) == 3


def test_rewrite_keeps_inputs() -> None:
    assert "x" in diamond().rewrite({"left": [], "right": []}, outputs=[])


@pytest.mark.parametrize("phase", [None, *PHASES])
def test_json_round_trip(phase: PhaseName | None) -> None:
    spec = small_spec(model__attention__sliding_window=5, model__attention__qkv_bias=True)
    graph = source_graph(spec)
    if phase:
        graph, _ = run_passes(graph, passes_of(phase))
    again = OpGraph.from_json(json.loads(json.dumps(graph.to_json())))
    assert list(again.values) == list(graph.values)
    assert list(again.ops) == list(graph.ops)
    assert again.outputs == graph.outputs
    assert again.dump() == graph.dump()
    assert json.dumps(again.to_json()) == json.dumps(graph.to_json())


def test_dump_shows_every_op_on_a_line() -> None:
    graph = small_graph()
    lines = graph.dump().splitlines()
    assert len(lines) == len(graph) + 1
    assert lines[0] == '%embedded: [tokens, 48] f32 = embed(ids=%token_ids, table=%embedding) {dtype="f32" scale=1.0}'
    assert lines[-1] == "return %logits"
    for line, kind in zip(lines, kinds(graph), strict=False):
        assert f"{kind}(" in line
    (write,) = [line for line in lines if "cache_write(" in line]
    assert write.startswith("cache_write(k=%layers.0.attention.k_rotated, v=%layers.0.attention.v_projected, slots=")
    assert "window" not in graph.dump(), "an attribute that is none is not shown"
    assert "window=5" in small_graph(model__attention__sliding_window=5).dump()


_DUMP = """
import json
from mlxr_tests.graphs import source_graph
from mlxr_tests.specs import small_spec
from mlxr.compiler.ir.ops.elementwise import Activation, Add
from mlxr.compiler.artifact.program import PHASES
from mlxr.compiler.passes.pipeline import passes_of, run_passes
graph = source_graph(small_spec(model__attention__qkv_bias=True))
for g in (graph, *(run_passes(graph, passes_of(phase))[0] for phase in PHASES)):
    print(g.dump(), json.dumps(g.to_json()))
"""


@pytest.mark.long  # so does test_same_bytes_for_any_hash_seed_and_folder, of whole artifacts
def test_dumps_do_not_depend_on_the_hash_seed() -> None:
    texts = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", _DUMP], env=environment, capture_output=True, text=True, check=True)
        texts.append(run.stdout)
    assert texts[0].count("return %logits") == 3
    assert texts[0] == texts[1]


def changed_json(**fields: object) -> dict[str, Any]:
    """The JSON of a graph whose op `left` has other fields."""
    data = diamond().to_json()
    data["ops"][0] |= fields
    return data


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "tanh"}, "op 'left' (tanh): unknown kind 'tanh'; known: activation, adapter_down, "),
        ({"attrs": {}}, "op 'left' (activation): attributes are []; expected ['kind']"),
        ({"attrs": {"kind": "silu", "limit": 1}}, "op 'left' (activation): attributes are ['kind', 'limit']; expected"),
        ({"attrs": {"kind": 7}}, "op 'left' (activation): attribute kind is 7; expected one of silu, gelu, "),
        ({"layer": "0"}, "op 'left': layer is '0'; expected a whole number"),
        ({"layer": True}, "op 'left': layer is True; expected a whole number"),
    ],
)
def test_json_of_an_op_that_there_cannot_be(fields: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        OpGraph.from_json(changed_json(**fields))
