"""Norms of large batches: cast once for a host, and the same arrays in every step and trace."""

import io
from typing import Any

import mlx.core as mx
import pytest

from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cuda import device
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr.runtime.hosts.mlx import host as mlx_host
from mlxr.runtime.hosts.mlx.norms import norms_for_mlx
from mlxr.runtime.hosts.mlx_ops import evaluate_large
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

    def evaluated(attrs: OpKind, inputs: dict[str, mx.array]) -> mx.array:
        if "norm" in inputs:
            norms = [inputs[port] for port in ports]
            assert all(norm.dtype == inputs["x"].dtype == mx.bfloat16 and is_computed(norm) for norm in norms)
            calls[-1] += norms
        return evaluate_large(attrs, inputs)

    monkeypatch.setattr(mlx_host, "evaluate_large", evaluated)
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


@pytest.mark.parametrize(("activations", "norm", "dtype"), [("bf16", "f32", mx.bfloat16), ("f32", "f16", mx.float32)])
def test_a_norm_has_the_type_that_its_op_computes_in(activations: str, norm: str, dtype: mx.Dtype) -> None:
    spec = spec_of(activation_dtype=activations, weights={"default": activations, "norm": norm})
    artifact = compiled(spec, Geometry.of(mlx_min_rows=4))
    loaded = random_buffers(artifact.plan)[0]
    found = norms_for_mlx(artifact, loaded)
    assert len(found) >= 2 * artifact.plan.num_layers, "and the last, where logits are computed in f32 anyway"
    for (step, name), norms in found.items():
        weight = loaded[artifact.graph(step).op(name).inputs["norm"]]
        assert norms["norm"].dtype == dtype and is_computed(norms["norm"])
        assert mx.array_equal(norms["norm"], weight.astype(dtype))


def test_kernels_alone_need_none() -> None:
    artifact = compiled(spec_of(), Geometry.of(mlx_min_rows=0))
    assert not norms_for_mlx(artifact, random_buffers(artifact.plan)[0])
