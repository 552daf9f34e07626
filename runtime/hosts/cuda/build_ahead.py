"""Compiles a program's kernels in threads of its own, while the rest of its artifact is still being compiled.

NVIDIA's compiler holds no lock of Python's. Who asks for a text that is being compiled waits for it (`build_cubin`).
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from mlxr.compiler.artifact import Program, body_of, header_of
from mlxr.runtime.hosts.cuda.build import build_cubin, cuda_source, with_prelude
from mlxr.runtime.hosts.cuda.device import architecture
from mlxr.runtime.hosts.cuda.recorded_batch import recorded_image
from mlxr.runtime.hosts.cuda.recorded_products import products_image
from mlxr.runtime.hosts.cuda.step_kernel import has_step_kernels
from mlxr.runtime.hosts.entry import BeginBuild


@contextmanager
def building_ahead() -> Iterator[BeginBuild]:
    """See `HostEntry`."""
    pools = list[ThreadPoolExecutor]()

    def begin(program: Program, sources: Mapping[str, str], name: str) -> None:
        card, texts = architecture(), dict[str, str]()
        if has_step_kernels(card):
            texts |= {entry.name: with_prelude(sources[entry.file]) for entry in program.step_kernels}
        for kernel in program.kernels:
            text = sources[kernel.file]
            texts[kernel.name] = cuda_source(kernel, header_of(text), body_of(text))
        pool = ThreadPoolExecutor(os.cpu_count())
        pools.append(pool)
        for image in (products_image, recorded_image):
            pool.submit(image)
        for kernel_name in sorted(texts, key=lambda each: -len(texts[each])):  # the largest take longest
            pool.submit(build_cubin, kernel_name, texts[kernel_name], card)

    try:
        yield begin
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
