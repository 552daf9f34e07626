"""Norms that library calls take in another type: cast once for a host, the same arrays in every step and trace."""

import io
from typing import Any

import mlx.core as mx
import pytest

from mlxr.compiler.artifact import DType, LibraryCall, MatmulCall
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cuda import device
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.mlx import launcher
from mlxr.runtime.hosts.mlx.library import call_library
from mlxr_tests.fake_card import Sums, use_card
from mlxr_tests.few import few
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import compiled, small_spec

LAYER = {"model__norm": {"kind": "layer", "bias": True}, "model__tensor_names": "canonical"}


def spec_of(**changes: Any) -> Any:
    base = {"activation_dtype": "bf16", "weights": {"default": "bf16", "norm": "f32"}, "cache__dtype": "bf16"}
    return small_spec(**{**base, **changes})


def is_computed(array: mx.array) -> bool:
    text = io.StringIO()
    mx.export_to_dot(text, array)
    return "label" not in text.getvalue()


@pytest.mark.skipif(device.has_cuda(), reason="a stand-in for its launches")
@pytest.mark.parametrize("changes", few([{}, LAYER], [LAYER]), ids=["rms", "layer"])
def test_steps_cast_no_norm(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    artifact = compiled(spec_of(**changes), Geometry.of(mlx_min_rows=4))
    use_card(monkeypatch, artifact, Sums())
    host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    calls: list[list[mx.array]] = []
    ports = ("norm", "norm_bias") if changes else ("norm",)

    def noted(call: LibraryCall, inputs: dict[str, mx.array], *more: None) -> mx.array:
        if "norm" in inputs:
            norms = [inputs[port] for port in ports]
            assert all(norm.dtype == inputs["x"].dtype == mx.bfloat16 and is_computed(norm) for norm in norms)
            calls[-1] += norms
        return call_library(call, inputs, *more)

    monkeypatch.setattr(launcher, "call_library", noted)
    pager = Pager.from_geometry(artifact.plan.arena)
    for _ in range(3):
        calls.append([])
        seq_id = pager.add_sequence()
        host.read(host.step(Batch.build([BatchRequest(seq_id, [1, 2, 3, 4, 5, 6], 0)], pager, 8)))
        pager.free(seq_id)
    first, traced, again = calls
    assert len(first) == 2 * len(ports) * artifact.plan.num_layers, "of attention and of the mlp"
    assert all(one is other for one, other in zip(first, traced, strict=True))
    assert not again, "the trace has them"


@pytest.mark.skipif(device.has_cuda(), reason="a stand-in for its launches")
@pytest.mark.parametrize(("activations", "norm", "dtype"), [("bf16", "f32", mx.bfloat16), ("f32", "f16", mx.float32)])
def test_a_norm_has_the_type_that_its_op_computes_in(
    monkeypatch: pytest.MonkeyPatch, activations: str, norm: str, dtype: mx.Dtype
) -> None:
    spec = spec_of(activation_dtype=activations, weights={"default": activations, "norm": norm})
    artifact = compiled(spec, Geometry.of(mlx_min_rows=4))
    use_card(monkeypatch, artifact, Sums())
    weights = random_buffers(artifact.plan)[0]
    arrays = CudaHost(artifact, weights, Arena(artifact.plan.arena)).run_launches(
        artifact.plan.first.phases[0], (), {}, {}
    )
    taken = {
        (port.dtype, name)
        for phase in artifact.plan.first.phases
        for launch in phase.launches
        if isinstance(launch.body, MatmulCall)
        for port, name in zip(launch.body.ports, launch.inputs, strict=True)
        if port.name == "norm"
    }
    assert taken == {(DType(activations), cast.name) for cast in artifact.plan.first.casts}
    assert len(taken) >= 2 * artifact.plan.num_layers, "and the last, where logits are computed in f32 anyway"
    for cast in artifact.plan.first.casts:
        assert arrays[cast.name].dtype == dtype and is_computed(arrays[cast.name])
        assert mx.array_equal(arrays[cast.name], weights[cast.weight].astype(dtype))


@pytest.mark.parametrize(("norm", "min_rows"), [("f32", 0), ("bf16", 4)])
def test_kernels_alone_and_norms_of_that_type_need_none(norm: str, min_rows: int) -> None:
    artifact = compiled(spec_of(weights={"default": "bf16", "norm": norm}), Geometry.of(mlx_min_rows=min_rows))
    assert not artifact.plan.first.casts
