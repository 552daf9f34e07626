"""What runs launches for hosts and the tuner: which of them run for a batch, what they bind, how they are counted."""

from collections import Counter
from typing import Any

import mlx.core as mx
import pytest

from mlxr.compiler.artifact import Artifact, KernelCall, MatmulCall, OpGraph
from mlxr.compiler.errors import HostError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.metal.host import MetalHost
from mlxr.runtime.hosts.mlx.launcher import Launcher
from mlxr.tuning.random_inputs import decode_batch, prefill_batch
from mlxr_tests.fake_gpu import FakeGpu
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import UNPACKED, compiled, small_spec

SIZES = {"mlx_quantised_min_rows": 18, "mlx_min_tokens": 8, "mlx_min_context": 24, "partition": 16}


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compiled(small_spec(**UNPACKED), Geometry.of(**SIZES))


def dims_of(tokens: int, seqs: int, rows: int, context: int) -> dict[Any, int]:
    return {"tokens": tokens, "seqs": seqs, "rows": rows, "tiles": tokens, "context": context}


def test_the_launches_of_a_batch_are_those_whose_conditions_hold(artifact: Artifact) -> None:
    """Also when another batch was asked for before, whose launches are kept."""
    program = artifact.plan.first
    launcher = Launcher(program, {})
    for phase in program.phases:
        found = set()
        for tokens in (1, 2, 7, 8, 17, 18, 20):
            for seqs in (1, 2):
                for rows in (0, 1, 3):
                    for context in (tokens, 17, 24, 40):
                        dims = dims_of(tokens, seqs, rows, context)
                        running = launcher.running(phase, dims)
                        assert running == tuple(la for la in phase.launches if la.runs(dims, library=True))
                        assert launcher.running(phase, dims) is running
                        found.add(running)
        assert len(found) >= 4


def test_a_library_call_runs_where_kernels_yield(artifact: Artifact) -> None:
    """On hosts with MLX's functions; what other hosts run is kernels that need none of its inputs."""
    phase = artifact.plan.first.phase("prefill")
    for tokens in range(1, 41):
        dims = dims_of(tokens, 1, 1, tokens)
        without = [launch for launch in phase.launches if launch.runs(dims, library=False)]
        with_library = [launch for launch in phase.launches if launch.runs(dims, library=True)]
        assert all(isinstance(launch.body, KernelCall) and not launch.needs_library for launch in without)
        yielding = [launch.outputs[0] for launch in without if launch not in with_library]
        called = [launch.outputs[0] for launch in with_library if not isinstance(launch.body, KernelCall)]
        assert yielding == called
        matmuls = sum(isinstance(launch.body, MatmulCall) for launch in with_library)
        assert matmuls == (8 if tokens >= 18 else 0)
        assert len(called) - matmuls == (2 if tokens >= 24 else 0)


def test_hosts_need_no_graph_to_run_a_step(monkeypatch: pytest.MonkeyPatch, artifact: Artifact) -> None:
    gpu = FakeGpu(lambda entry: 0.0)
    monkeypatch.setattr(MetalHost, "make_kernels", staticmethod(lambda artifact, _: gpu.make_kernels(artifact)))

    def refused(*_: object) -> OpGraph:
        raise AssertionError("a host reads a graph")

    monkeypatch.setattr(Artifact, "graph", refused)
    host = MetalHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))
    for batch in (prefill_batch(artifact, 30), decode_batch(artifact, 1, 30), decode_batch(artifact, 20, 2)):
        mx.eval(host.step(batch))
    called = Counter({name: count for name, count in host.launches.items() if name.startswith("mlx.")})
    assert called == {"mlx.projection": 8 + 8, "mlx.rope_attention": 2}, "a prompt, and a step of 20 sequences"
    assert sum((host.launches - called).values()) == len(gpu.launched)


def test_a_kernel_that_mlx_refuses_is_named(artifact: Artifact) -> None:
    def refuse(**_: object) -> list[mx.array]:
        raise RuntimeError("too many resources")

    phase = artifact.plan.first.phase("decode")
    launch = phase.launches[0]
    launcher = Launcher(artifact.plan.first, {launch.kernel: refuse})
    arrays = dict.fromkeys(launch.inputs, mx.zeros((8,)))
    with pytest.raises(HostError, match=f"kernel {launch.kernel} cannot be launched: too many resources"):
        launcher.run("decode", launch, arrays, dims_of(1, 1, 1, 1))


def test_small_results_of_the_library_are_bindable() -> None:
    """A gate of one token is one number: the next kernel binds eight."""
    spec = small_spec(activation_dtype="bf16", cache__dtype="bf16", weights={"default": "bf16"})
    artifact = compiled(spec, Geometry.of(mlx_min_rows=1))
    program = artifact.plan.first
    launch = next(la for la in program.phase("prefill").launches if isinstance(la.body, MatmulCall))
    assert isinstance(launch.body, MatmulCall)
    ports = tuple(port.model_copy(update={"shape": (port.shape[0], 4)}) for port in launch.body.ports[:2])
    body = launch.body.model_copy(update={"ports": (ports[0], ports[1].model_copy(update={"shape": (3, 4)}))})
    small = launch.model_copy(update={"body": body.model_copy(update={"norm": None}), "inputs": launch.inputs[:2]})
    x = mx.arange(8, dtype=mx.bfloat16)  # of one token of 4 numbers, and 4 that were added to bind it
    arrays = dict(zip(small.inputs, (x, mx.ones((3, 4), dtype=mx.bfloat16)), strict=True))
    counts: Counter[str] = Counter()
    Launcher(program, {}, lambda name, _: counts.update([name])).run("prefill", small, arrays, dims_of(1, 1, 1, 1))
    assert arrays[small.outputs[0]].tolist() == [6.0] * 3 + [0.0] * 5
    assert counts == {"mlx.projection": 1}
