"""A fake NVIDIA GPU: host cuda runs on any machine, and sim executes its launches."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import ATTENDED, Artifact, decode_dims
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.targets.metal.decode_kernel.make_step_program import make_step_program, step_classes
from mlxr.compiler.targets.metal.decode_kernel.step_program import StepLaunch, StepProgram
from mlxr.runtime.hosts.cuda import host as cuda_host
from mlxr.runtime.hosts.cuda import step_kernel
from mlxr.runtime.hosts.cuda.occupancy import Residency
from mlxr.runtime.hosts.sim.kernel import SimBuffer
from mlxr_tests.kernel_host import sim_kernel

_STORES = (*ATTENDED, CONV_STATES, STATES)


def use_card(monkeypatch: pytest.MonkeyPatch, artifact: Artifact, launch: Any) -> None:
    """Makes MLX look as if it had a card that runs launches with `launch`."""
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    info = {"architecture": "sm_90", "compute_capability_major": 9, "compute_capability_minor": 0}
    monkeypatch.setattr(mx, "device_info", lambda *_: info)
    monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", launch)

    def build(sources: dict[str, str], architecture: str, _: Any) -> dict[str, bytes]:
        assert architecture == "sm_90a"
        for name, text in sources.items():
            header, body = artifact.kernel_sections(name)
            assert header in text and body in text, "the card must get the artifact's text"
        return dict.fromkeys(sources, b"")

    def build_step(name: str, text: str, architecture: str) -> bytes:
        assert name in text and architecture == "sm_90a"
        return b""

    monkeypatch.setattr(cuda_host, "build_cubins", build)
    monkeypatch.setattr(step_kernel, "build_cubin", build_step)
    monkeypatch.setattr(step_kernel, "residency", lambda *_: Residency(3, 2))


class SimLauncher:
    """Stands in for `mx.fast.precompiled_cuda_kernel`; sim executes launches at once."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.uploads = 0

    def __call__(
        self,
        *,
        name: str,
        inputs: Sequence[mx.array],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[Any],
        ensure_row_contiguous: bool,
        **_: Any,
    ) -> list[mx.array]:
        assert not ensure_row_contiguous, "a contiguous copy of the arena would swallow its writes"
        if name.startswith("step_"):
            return self._step(inputs, output_shapes, output_dtypes)
        kernel = sim_kernel(self.artifact.kernel_text(name))
        outputs = [mx.full(shape, 7, dtype=dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        mx.eval(*inputs, *outputs)
        buffers = [
            SimBuffer.of(array, writable=i >= len(inputs) or param.name in _STORES, name=param.name)
            for i, (array, param) in enumerate(zip([*inputs, *outputs], kernel.params, strict=True))
        ]
        groups = tuple(g // t for g, t in zip(grid, threadgroup, strict=True))
        kernel.launch(buffers, (groups[0], groups[1], groups[2]), threadgroup)
        return outputs

    def _step(
        self, inputs: Sequence[mx.array], output_shapes: Sequence[tuple[int, ...]], output_dtypes: Sequence[Any]
    ) -> list[mx.array]:
        """Runs the program of a step kernel, one launch after the other."""
        rows = output_shapes[0][0]
        program = self._program_of(rows)
        *bound, gate, mask, turn = inputs
        results = [
            np.full(s, 7, np.uint32 if d == mx.uint32 else np.float32)
            for s, d in zip(output_shapes, output_dtypes, strict=True)
        ]
        mx.eval(*inputs)
        assert gate.size and len(bound) == len(program.inputs) and len(results) == len(program.outputs) + 1
        memory: dict[str, Any] = dict(zip((*program.inputs, *program.outputs), [*bound, *results], strict=False))
        for launch in program.running(int(mask[0])):
            self._run_inside(launch, launch.threadgroups(decode_dims(rows, 1)), memory)
        results[-1][...] = np.array(turn) + 1
        return [mx.array(array) for array in results]

    def _program_of(self, rows: int) -> StepProgram:
        plan = self.artifact.plan
        (counts,) = (counts for counts in step_classes(plan.first, plan.arena.max_sequences) if rows in counts)
        return make_step_program(plan.first, counts)

    def _run_inside(self, launch: StepLaunch, grid: tuple[int, int, int], memory: dict[str, Any]) -> None:
        kernel = sim_kernel(self.artifact.kernel_text(launch.kernel.name))
        buffers = []
        for i, (place, param) in enumerate(zip(launch.operands, kernel.params, strict=True)):
            whole = SimBuffer.of(memory[place.argument], writable=True, name=param.name)
            size = min(place.size_bytes, whole.size_bytes - place.offset_bytes)
            writable = i >= launch.num_inputs or place.argument in _STORES
            buffers.append(SimBuffer(whole.address + place.offset_bytes, size, writable, param.name, whole))
        kernel.launch(buffers, grid, (launch.kernel.threads, 1, 1))


class Sums:
    """Stands in for `mx.fast.precompiled_cuda_kernel`: launches are lazy sums, which MLX may trace.

    Attributes:
        calls: names of the kernels that were launched or traced.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, *, name: str, inputs: Any, output_shapes: Any, output_dtypes: Any, **_: Any) -> list[mx.array]:
        """Launches a kernel."""
        self.calls.append(name)
        return sums(inputs, output_shapes, output_dtypes)


def sums(inputs: Sequence[mx.array], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]) -> list[mx.array]:
    """The outputs of a launch, filled with the sum of its inputs' first numbers.

    `mx.compile` must not fuse any two of these ops, because MLX runs a C++ compiler for each new chain of fused ops.
    """
    firsts = [x.reshape(-1)[:1].astype(mx.float32) for x in inputs]
    total = mx.sum(mx.concatenate([*firsts, mx.zeros(1)]))
    as_types = [mx.contiguous(total.astype(dtype)) for dtype in dtypes]
    return [mx.contiguous(mx.broadcast_to(x, shape)) for x, shape in zip(as_types, shapes, strict=True)]
