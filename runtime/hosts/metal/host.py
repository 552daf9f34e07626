"""The `metal` host: the artifact's kernels through `mx.fast.metal_kernel` on Apple silicon."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlxr.compiler.artifact import Artifact, KernelEntry
from mlxr.runtime.hosts.mlx.host import MlxHost
from mlxr.runtime.hosts.mlx.launcher import MlxKernel
from mlxr.runtime.memory.free_memory import FreeMemory, metal_memory


def metal_kernel(artifact: Artifact, kernel: KernelEntry) -> MlxKernel:
    """A kernel as MLX launches it. The arena must never be copied, so MLX makes no contiguous copies of inputs."""
    return launcher(kernel, *artifact.kernel_sections(kernel.name, MlxHost.target))


def launcher(kernel: KernelEntry, header: str, body: str) -> MlxKernel:
    """A kernel of this text as MLX launches it."""
    kernel_object: Any = mx.fast.metal_kernel(  # MLX's stub does not say that it can be called
        name=kernel.name,
        input_names=[port.name for port in kernel.inputs],
        output_names=[port.name for port in kernel.outputs],
        header=header,
        source=body,
        ensure_row_contiguous=False,
    )
    launch: MlxKernel = kernel_object
    return launch


class MetalHost(MlxHost):
    """Runs the plan on an Apple GPU; MLX compiles each kernel at its first launch."""

    name = "metal"

    @classmethod
    def free_memory(cls) -> FreeMemory:
        """See `Host.free_memory`: no more than a GPU should use of the machine's memory."""
        return metal_memory(super().free_memory())

    @classmethod
    def make_kernels(
        cls, artifact: Artifact, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, MlxKernel]:
        """See `MlxHost.make_kernels`; nothing is compiled yet."""
        return {kernel.name: metal_kernel(artifact, kernel) for kernel in artifact.plan.program(cls.target).kernels}
