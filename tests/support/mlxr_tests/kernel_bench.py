"""Runs a single kernel, without a model."""

from collections.abc import Collection, Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from mlxr.compiler.targets.metal.kernel_parts.kernel import MetalKernel
from mlxr.compiler.targets.metal.render import render
from mlxr.compiler.targets.provenance import Provenance
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.sim.kernel import SimBuffer
from mlxr_tests.kernel_host import load_kernel
from mlxr_tests.specs import without_provenance

_INTEGERS = {1: np.int8, 2: np.int16, 4: np.int32}
_ORIGIN = Provenance("0", "test", "0")


def kernel_text(kernel: MetalKernel) -> tuple[str, str]:
    """A kernel's name and its Metal file."""
    source = render(kernel, _ORIGIN)
    return source.name, without_provenance(source.text)


def run_kernel(
    kernel: MetalKernel,
    inputs: Mapping[str, mx.array],
    shapes: Mapping[str, tuple[int, ...]],
    grid: tuple[int, int, int],
    *,
    seed: int = 0,
    text: str | None = None,
    in_place: Collection[str] = (),
) -> dict[str, mx.array]:
    """Launches a kernel on arrays that are named by its ports, and returns its outputs.

    Args:
        kernel: the kernel.
        inputs: its inputs, in the types of the kernel's ports.
        shapes: the shapes of its outputs, which start as NaN, or as -1 for integers.
        grid: threadgroups along each axis.
        seed: seed of the order in which threads run.
        text: a text to run instead of the kernel's own.
        in_place: inputs that the kernel may write.
    """
    name, own = kernel_text(kernel)
    outputs: dict[str, Any] = {}
    for port, dtype in kernel.outputs:
        outputs[port] = np.full(shapes[port], -1, dtype=_INTEGERS[dtype.size_bytes])
    for port, dtype in kernel.inputs:
        assert inputs[port].dtype == MLX_DTYPES[str(dtype)], f"{port} is {inputs[port].dtype}, the port {dtype}"
    buffers = [SimBuffer.of(inputs[port], writable=port in in_place, name=port) for port, _ in kernel.inputs]
    buffers += [SimBuffer.of(outputs[port], writable=True, name=port) for port, _ in kernel.outputs]
    load_kernel(text or own, name, kernel.threads).launch(buffers, grid, (kernel.threads, 1, 1), seed=seed)
    return {port: mx.array(outputs[port]).view(MLX_DTYPES[str(dtype)]) for port, dtype in kernel.outputs}
