"""Launches that unpack a layer's weights for MLX: which become one, and which stay apart."""

from typing import Any

import pytest

from mlxr.compiler.artifact.chip import Chip
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.artifact.launch import ONE, Condition, Extent, KernelCall
from mlxr.compiler.artifact.library_call import MatmulCall
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import layout_of
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.metal.kernel_parts.kernel import MetalKernel
from mlxr.compiler.targets.metal.kernels.norm import NormKernel
from mlxr.compiler.targets.metal.kernels.unpack import UnpackKernel
from mlxr.compiler.targets.metal.merge_unpacks import MOST_BYTES, merge_unpacks
from mlxr_tests.specs import UNPACKED, small_spec

ALL = ("attention.qkv_projected", "attention.out", "mlp.gated", "mlp.out")
MANY = Condition(dim="tokens", minimum=48)


def plan_with(**labelled: dict[str, int]) -> Plan:
    """The plan of two layers, where MLX takes 16 rows and more, and these sizes hold for these labels."""
    rules = [
        GeometryRule(sizes=sizes, because="so", origin="predicted", labels=(label,) if label else ())
        for label, sizes in {"": {"mlx_quantised_min_rows": 16}, **labelled}.items()
    ]
    chip = Chip(name="one", title="One", geometry=tuple(rules))
    return compile_spec(small_spec(**UNPACKED), targets=("metal",), chip=chip).artifact.plan


def feeding(plan: Plan) -> list[tuple[str, str, tuple[str, ...]]]:
    """Of the launches that unpack: label, conditions, and what is made, without the layer."""
    return [
        (plan.first.kernel(la.kernel).label, str(la.when), tuple(map(without_layer, la.outputs)))
        for la in plan.first.phase("prefill").launches
        if la.needs_library and isinstance(la.body, KernelCall)
    ]


def without_layer(buffer: str) -> str:
    return buffer.removesuffix(".unpacked").split(".", 2)[2]


def test_a_layer_has_one_launch_before_its_first_projection() -> None:
    plan = plan_with()
    assert feeding(plan) == [("unpack", "tokens >= 16", ALL)] * 2
    launches = plan.first.phase("prefill").launches
    for layer in range(2):
        ops = [i for i, la in enumerate(launches) if la.op.startswith(f"layers.{layer}.")]
        assert launches[ops[0]].needs_library, "before all others of the layer"
        assert launches[ops[0]].inputs[0] == f"layers.{layer}.attention.qkv"
        taken = {launches[i].inputs[1] for i in ops if isinstance(launches[i].body, MatmulCall)}
        assert taken == set(launches[ops[0]].outputs)
    kernels = [kernel for kernel in plan.first.kernels if kernel.label == "unpack"]
    assert len(kernels) == 2, "q6_k in one layer"
    assert all(k.chosen is not None and k.chosen.site.startswith("qkv ") for k in kernels), "the site of its op"


def test_one_place_serves_all_layers() -> None:
    step = plan_with().first.phase("prefill")
    buffers = [b for b in step.buffers if b.name.endswith(".unpacked")]
    first, second = ([b for b in buffers if b.name.startswith(f"layers.{layer}.")] for layer in range(2))
    assert len(first) == len(second) == 4
    size = sum(b.size_bytes for b in first)
    for layer in (first, second):
        assert max(b.offset_bytes + b.size_bytes for b in layer) < 1.5 * size


@pytest.mark.parametrize("sizes", [{"mlx_quantised_min_rows": 32}, {"unpack_unroll": 1}])
def test_what_differs_stays_apart(sizes: dict[str, int]) -> None:
    plan = plan_with(o=sizes)
    minimum = sizes.get("mlx_quantised_min_rows", 16)
    apart = ("o_unpack", f"tokens >= {minimum}", ALL[1:2])
    assert feeding(plan) == [("unpack", "tokens >= 16", (ALL[0], *ALL[2:])), apart] * 2
    both = plan_with(o=sizes, down=sizes)
    pair = ("unpack", f"tokens >= {minimum}", (ALL[1], ALL[3]))
    assert feeding(both) == [("unpack", "tokens >= 16", (ALL[0], ALL[2])), pair] * 2


def test_what_mlx_never_takes_is_not_merged() -> None:
    never = {"mlx_quantised_min_rows": 0}
    assert feeding(plan_with(o=never, gate_up=never, down=never)) == [("qkv_unpack", "tokens >= 16", ALL[:1])] * 2


def unpack(op: str, rows: int, **changes: Any) -> PendingLaunch:
    """A launch that makes `rows` KiB."""
    kernel = UnpackKernel("x_unpack", (layout_of([(WeightFormat.Q8_0, rows)], 512),), DType.BF16, 2)
    layer = int(op.split(".")[1]) if op.startswith("layers.") else None
    options = {"layer": layer, "when": MANY, "needs_library": True, **changes}
    return PendingLaunch(
        op, kernel, (f"{op}.w",), (f"{op}.u",), (Extent(times=kernel.threadgroups), ONE, ONE), **options
    )


def merged_ops(launches: list[PendingLaunch], most_kib: int) -> list[str]:
    return [" ".join(out.removesuffix(".u") for out in la.outputs) for la in merge_unpacks(launches, most_kib * 1024)]


def test_no_more_is_merged_than_the_limit() -> None:
    a, b, c, d = "layers.0.a", "layers.0.b", "layers.0.c", "layers.0.d"
    launches = [unpack(a, 30), unpack(b, 20), unpack(c, 80), unpack(d, 10)]
    assert merged_ops(launches, 140) == [f"{a} {b} {c} {d}"]
    assert merged_ops(launches, 139) == [f"{a} {b} {c}", d]
    assert merged_ops(launches, 129) == [f"{a} {b}", f"{c} {d}"]
    assert merged_ops(launches, 50) == [f"{a} {b}", c, d], "one that is larger stays alone"
    assert merge_unpacks(launches, 0) == launches
    assert merged_ops(launches, MOST_BYTES // 1024) == [f"{a} {b} {c} {d}"]


def test_nothing_is_merged_across_layers_or_outside_of_them() -> None:
    names = ["layers.1.a", "layers.10.a", "head.a", "head.b"]
    launches = [unpack(name, 1) for name in names]
    assert merge_unpacks(launches) == launches


def test_other_launches_keep_their_order() -> None:
    norm: MetalKernel = NormKernel("norm", 8, 1, "rms", 1e-5, False, DType.F32, None, False, 1.0, DType.BF16)
    others = [PendingLaunch(f"layers.0.{name}", norm, (), (name,), layer=0) for name in "xyz"]
    x, y, z = others
    launches = merge_unpacks([x, unpack("layers.0.a", 1), y, unpack("layers.0.b", 2), z])
    assert [launches[0], *launches[2:]] == [x, y, z]
    merged = launches[1]
    assert isinstance(merged.body, UnpackKernel) and merged.body.label == "unpack"
    assert [layout.rows for layout in merged.body.layouts] == [1, 2]
    assert (merged.op, merged.inputs, merged.when) == ("layers.0.a", ("layers.0.a.w", "layers.0.b.w"), MANY)
    assert merged.needs_library and merged.threadgroups == (Extent(times=2), ONE, ONE)
