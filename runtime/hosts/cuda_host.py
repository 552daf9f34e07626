"""The `cuda` host: the artifact's Metal kernels on an NVIDIA GPU.

The same text as on Apple silicon, compiled through a prelude (see cuda/build.py) and launched by MLX.
"""

import functools
from collections.abc import Callable

import mlx.core as mx

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.hosts.cuda.build import build_cubins, cuda_source
from mlxr.runtime.hosts.cuda.device import architecture
from mlxr.runtime.hosts.host import Progress
from mlxr.runtime.hosts.mlx_host import Launcher, MlxHost
from mlxr.runtime.weights.weight_file import WeightFile


class CudaHost(MlxHost):
    """Runs the plan on an NVIDIA GPU."""

    name = "cuda"

    @classmethod
    def read_arrays(cls, artifact: Artifact, file: WeightFile, progress: Progress | None = None) -> dict[str, mx.array]:
        """See `ArrayHost.read_arrays`; the weights lie in the GPU's own memory."""
        weights = super().read_arrays(artifact, file, progress)
        for name in weights:
            weights[name] = _on_device(weights[name])
        mx.clear_cache()  # what the CPU has filled is managed memory, and would serve later arrays
        return weights

    @classmethod
    def make_kernels(
        cls, artifact: Artifact, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Launcher]:
        """See `MlxHost.make_kernels`; all are compiled, or taken from the cache, before this returns."""
        sources = {k.name: cuda_source(k, *artifact.kernel_sections(k.name)) for k in artifact.plan.kernels}
        cubins = build_cubins(sources, architecture(), progress)
        return {name: launcher(name, cubin) for name, cubin in cubins.items()}


def launcher(name: str, cubin: bytes) -> Launcher:
    """A kernel as MLX launches it; inputs are never copied."""
    return functools.partial(
        mx.fast.precompiled_cuda_kernel, name=name, compiled_source=cubin, scalars=[], ensure_row_contiguous=False
    )


def _on_device(array: mx.array) -> mx.array:
    """A copy that the GPU wrote: it is in the GPU's own memory, where what the CPU fills is in managed memory."""
    bits = array.view({1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[array.itemsize])
    copy = (bits | 0).view(array.dtype)
    mx.eval(copy)
    return copy
