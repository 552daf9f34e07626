"""The host of kernel tests: sim, or a GPU. The fixture `kernel_host` chooses.

On the GPU every launch's outputs start as NaN, like sim's memory. On sim a kernel is compiled at its first launch,
because many tests launch only a few of an artifact's kernels.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import ParamSpec, TypeVar
from unittest import mock

import mlx.core as mx

from mlxr.compiler.artifact import Artifact
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.cuda.host import CudaHost, launcher
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.hosts.metal.host import MetalHost
from mlxr.runtime.hosts.mlx.launcher import MlxKernel
from mlxr.runtime.hosts.sim import host as sim_host
from mlxr.runtime.hosts.sim.host import SimHost
from mlxr.runtime.hosts.sim.kernel import SimKernel
from mlxr_tests.gpu_kernel import POISON, CudaKernel, GpuKernel, MetalKernel

_P, _R = ParamSpec("_P"), TypeVar("_R")

KERNEL_HOSTS = ("sim", "cuda", "metal")
_chosen = ["sim"]


@contextmanager
def kernel_host(name: str) -> Iterator[None]:
    """Runs kernels on this host until the end of the block."""
    _chosen.append(name)
    try:
        yield
    finally:
        _chosen.pop()


def on_cpu(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes a method compute on the CPU with MLX, so that a GPU runs only the kernels under test."""

    @functools.wraps(method)
    def run(*args: _P.args, **options: _P.kwargs) -> _R:
        with mx.stream(mx.cpu):
            return method(*args, **options)

    return run


def load_kernel(text: str, name: str, threads: int) -> SimKernel | GpuKernel:
    """A kernel from its complete Metal file, cached."""
    return _load(_chosen[-1], text, name, threads)


def make_kernel_host(artifact: Artifact, weights: Mapping[str, mx.array], arena: Arena) -> Host:
    """A host for all kernels of an artifact."""
    if _chosen[-1] == "cuda":
        return PoisonedCudaHost(artifact, weights, arena)
    if _chosen[-1] == "metal":
        return PoisonedMetalHost(artifact, weights, arena)
    with mock.patch.object(sim_host, "prepare", lambda texts, _: _WhenLaunched(texts)):
        return SimHost(artifact, weights, arena)


class _WhenLaunched(dict[str, SimKernel]):
    """Kernels by name, each compiled at its first use."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, name: str) -> SimKernel:
        self[name] = sim_kernel(self._texts[name], name)
        return self[name]


class PoisonedCudaHost(CudaHost):
    """Host cuda with NaN as the initial value of every output."""

    @classmethod
    def make_kernels(
        cls, artifact: Artifact, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, MlxKernel]:
        """See `CudaHost`."""
        launchers = super().make_kernels(artifact, progress)
        return {name: functools.partial(launcher, init_value=POISON) for name, launcher in launchers.items()}

    @staticmethod
    def launcher_of(name: str, image: bytes, pool: int) -> MlxKernel:
        """See `CudaHost`."""
        return functools.partial(launcher(name, image), init_value=POISON)


class PoisonedMetalHost(MetalHost):
    """Host metal with NaN as the initial value of every output."""

    @classmethod
    def make_kernels(
        cls, artifact: Artifact, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, MlxKernel]:
        """See `MetalHost`."""
        launchers = super().make_kernels(artifact, progress)
        return {name: functools.partial(launcher, init_value=POISON) for name, launcher in launchers.items()}


@functools.lru_cache(maxsize=1024)
def _load(host: str, text: str, name: str, threads: int) -> SimKernel | GpuKernel:
    if host == "sim":
        return SimKernel.load(text, name=name)
    return {"cuda": CudaKernel, "metal": MetalKernel}[host](text, name, threads)


@functools.lru_cache(maxsize=1024)
def sim_kernel(text: str, name: str | None = None) -> SimKernel:
    """A kernel on sim, cached."""
    return SimKernel.load(text, name=name)
