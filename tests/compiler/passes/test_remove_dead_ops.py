"""remove_dead_ops: what reaches neither a result nor the arena goes."""

from mlxr.compiler.passes.remove_dead_ops import RemoveDeadOps
from mlxr_tests.graphs import Sketch, check_same_numbers, check_silent, fires, kinds, small_graph, source_graph
from mlxr_tests.specs import small_spec


def test_rule_1_removes_whole_chains() -> None:
    sketch = Sketch()
    live = sketch.linear("live", sketch.x, 48, 24)
    dead = sketch.linear("dead", sketch.x, 48, 16)
    sketch.op("activation", "deader", attrs={"kind": "silu"}, x=dead)
    source = sketch.graph(live)
    left = fires(RemoveDeadOps(), source)
    assert kinds(left) == ["embed", "linear"]
    assert {"dead", "deader", "dead.weight"}.isdisjoint(v.name for v in left.values)
    check_same_numbers(source, left)


def test_rule_1_keeps_what_a_live_op_reads_even_if_a_dead_one_reads_it_too() -> None:
    sketch = Sketch()
    shared = sketch.linear("shared", sketch.x, 48, 24)
    sketch.op("activation", "dead", attrs={"kind": "silu"}, x=shared)
    assert kinds(fires(RemoveDeadOps(), sketch.graph(shared))) == ["embed", "linear"]


def test_rule_1_keeps_arena_writes_and_removes_arena_reads() -> None:
    spec = small_spec(model__num_layers=2)
    source = source_graph(spec)
    # Nothing reads the last layer's attention when layer 1's input is returned; its K and V must be written still.
    cut = source.rewrite({}, outputs=["layers.0.mlp.out"])
    left = fires(RemoveDeadOps(), cut)
    assert [op.layer for op in left.ops if op.kind == "cache_write"] == [0, 1]
    assert [op.layer for op in left.ops if op.kind == "attention"] == [0]
    assert "layers.1.attention.k" in left and "layers.1.attention.q" not in left
    check_same_numbers(cut, left, spec)


def test_batch_inputs_stay_although_nothing_reads_them() -> None:
    sketch = Sketch()
    sketch.linear("dead", sketch.x, 48, 16)
    assert "positions" in fires(RemoveDeadOps(), sketch.graph(sketch.x))


def test_must_not_fire_when_everything_is_alive() -> None:
    check_silent(RemoveDeadOps(), small_graph())
