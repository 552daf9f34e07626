"""A fake GPU for tests that time launches: sim computes in MLX's place, and a fake clock counts the time."""

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from mlxr.compiler.artifact import ATTENDED, Artifact, KernelEntry
from mlxr.runtime.hosts.sim.kernel import SimBuffer
from mlxr_tests.kernel_host import sim_kernel


class FakeGpu:
    """Launches kernels on sim. Time advances by `cost_us` when a launch is evaluated.

    Attributes:
        launched: names of the launched kernels, in order.
        inputs: the inputs of each launch, by port.
        fails: tells whether a kernel cannot be launched.
    """

    def __init__(self, cost_us: Callable[[KernelEntry], float], compute: bool = True) -> None:
        self.launched: list[str] = []
        self.inputs: list[dict[str, mx.array]] = []
        self.fails: Callable[[KernelEntry], bool] = lambda entry: False
        self._cost_us, self._compute = cost_us, compute
        self._pending_us = self._now_us = 0.0

    def clock(self) -> float:
        """The time in seconds."""
        return self._now_us / 1e6

    def spend(self, time_us: float) -> None:
        """Launches work that takes this long."""
        self._pending_us += time_us

    def evaluate(self, array: mx.array) -> None:
        """Waits for all launched work; each evaluation costs 100 us more."""
        mx.eval(array)
        self._now_us += self._pending_us + 100.0
        self._pending_us = 0.0

    def make_kernels(self, artifact: Artifact) -> Mapping[str, Callable[..., list[mx.array]]]:
        """The artifact's kernels."""
        return {kernel.name: self._kernel(artifact, kernel) for kernel in artifact.plan.first.kernels}

    def _kernel(self, artifact: Artifact, entry: KernelEntry) -> Callable[..., list[mx.array]]:
        def launch(
            *,
            inputs: list[mx.array],
            grid: tuple[int, int, int],
            threadgroup: tuple[int, int, int],
            output_shapes: list[tuple[int, ...]],
            output_dtypes: list[Any],
        ) -> list[mx.array]:
            if self.fails(entry):
                raise RuntimeError("too many resources")
            assert all(x.size >= 8 for x in inputs), "MLX would bind a smaller input in the constant address space"
            outputs = [
                mx.full(shape, 7, dtype=dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
            ]
            names = [port.name for port in (*entry.inputs, *entry.outputs)]
            mx.eval(*inputs, *outputs)
            if self._compute:
                buffers = [
                    SimBuffer.of(array, writable=i >= len(inputs) or names[i] in ATTENDED, name=names[i])
                    for i, array in enumerate([*inputs, *outputs])
                ]
                groups = tuple(whole // part for whole, part in zip(grid, threadgroup, strict=True))
                kernel = sim_kernel(artifact.kernel_text(entry.name))
                kernel.launch(buffers, (groups[0], groups[1], groups[2]), threadgroup)
            self.launched.append(entry.name)
            self.inputs.append(dict(zip(names, inputs, strict=False)))
            self.spend(self._cost_us(entry))
            return outputs

        return launch
