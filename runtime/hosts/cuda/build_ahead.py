"""Compiles a program's kernels in processes of its own, while the rest of its artifact is still being compiled.

Each begins when it has its text, while others are rendered. Kernels that every program needs begin first. Who asks for
a text that is being compiled waits for it (`build_cubin`).
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from mlxr.compiler.artifact import DType, KernelEntry, Program, body_of, header_of
from mlxr.runtime.hosts.cuda.address_table import addresses_image
from mlxr.runtime.hosts.cuda.build import build_cubin, cuda_source, with_prelude
from mlxr.runtime.hosts.cuda.compilers import COMPILERS
from mlxr.runtime.hosts.cuda.device import architecture
from mlxr.runtime.hosts.cuda.drawing import draw_image
from mlxr.runtime.hosts.cuda.recorded_batch import recorded_image
from mlxr.runtime.hosts.cuda.recorded_products import products_image
from mlxr.runtime.hosts.cuda.step_kernel import has_step_kernels
from mlxr.runtime.hosts.entry import BeginBuild
from mlxr.runtime.machine.threads import usable_cpus


class _Builds:
    """Kernels that are being compiled for this card."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._card, self._begun, self._pool = architecture(), set[str](), pool
        for dtype in (DType.BF16, DType.F16):  # f32 is rare
            pool.submit(products_image, dtype)
        for image in (addresses_image, recorded_image):
            pool.submit(image)

    def begin_kernel(self, entry: KernelEntry, text: str) -> None:
        """Begins with a kernel, unless it has begun."""
        if entry.name not in self._begun:
            self._begun.add(entry.name)
            self._pool.submit(build_cubin, entry.name, cuda_source(entry, header_of(text), body_of(text)), self._card)

    def begin_program(self, program: Program, sources: Mapping[str, str], _: str) -> None:
        """Begins with whatever has not begun; the largest texts take longest."""
        if has_step_kernels(self._card):
            texts = {entry.name: with_prelude(sources[entry.file]) for entry in program.step_kernels}
            for name in sorted(texts, key=lambda each: -len(texts[each])):
                self._pool.submit(build_cubin, name, texts[name], self._card)
        for kernel in sorted(program.kernels, key=lambda each: -len(sources[each.file])):
            self.begin_kernel(kernel, sources[kernel.file])
        self._pool.submit(draw_image)  # no load waits for it


@contextmanager
def building_ahead() -> Iterator[BeginBuild]:
    """See `HostEntry`."""
    with COMPILERS.wanted():
        pool = ThreadPoolExecutor(usable_cpus(), "mlxr-build")
        try:
            builds = _Builds(pool)
            yield BeginBuild(builds.begin_program, builds.begin_kernel)
        finally:
            pool.shutdown(cancel_futures=True)
