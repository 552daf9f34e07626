"""fuse_clamp: the bounds of a projection's results move into it, and merge_qkv merges what it leaves."""

from mlxr.compiler.passes.fuse_clamp import FuseClamp
from mlxr.compiler.passes.merge_qkv import MergeQkv
from mlxr_tests.graphs import Sketch, check_same_numbers, check_silent, fires, kinds, returning, source_graph
from mlxr_tests.specs import small_spec


def test_rule_1_and_merge_qkv_s_rule_2() -> None:
    spec = small_spec(model__attention__qkv_limit=0.25, model__attention__qkv_bias=True)
    source = source_graph(spec)
    clamped = fires(FuseClamp(), source)
    assert kinds(clamped).count("clamp") == 0
    merged = fires(MergeQkv(), clamped)
    op = merged.op("layers.0.attention.qkv_projected")
    assert (op.kind, op.attrs.out_limit) == ("projection", 0.25)
    check_same_numbers(source, merged, spec)


def test_must_not_fire_when_the_result_is_read_elsewhere() -> None:
    sketch = Sketch()
    sketch.op("clamp", "clamped", attrs={"limit": 0.5}, x=sketch.linear("projected", sketch.x, 48, 24))
    check_silent(FuseClamp(), returning(sketch.graph("clamped"), "projected"))


def test_must_not_fire_after_an_op_that_is_no_product() -> None:
    sketch = Sketch()
    check_silent(FuseClamp(), sketch.graph(sketch.op("clamp", "clamped", attrs={"limit": 0.5}, x=sketch.x)))
